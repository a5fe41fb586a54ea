"""A program as an agent: it runs its own loop, asks a registered model through the gateway, and prints its
answer.

Each episode gets an address of its own, so that its calls are recorded as one session; the session gets the
episode's reward.
"""

import asyncio
import json
import os
import shlex
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from upcycle.errors import Unavailable
from upcycle.external.dialects import Dialect
from upcycle.external.gateway import gateway_model
from upcycle.external.keys import hidden
from upcycle.external.naming import ExternalModel
from upcycle.external.player import ModelPlayer
from upcycle.external.server import ModelServer
from upcycle.harness import AssistantTurn
from upcycle.harness.chat import ChatReply, Messages
from upcycle.playing.errors import PlayerFailed, PlayRefused
from upcycle.results import Run

PREFIX: Final = "cmd:"
"""What `--agent` begins with, for a command."""
COMMAND_S: Final = 1800.0
"""Longest that the command of one episode may run."""
MAX_ANSWER_BYTES: Final = 1 << 20
_MAX_VARIABLE_BYTES: Final = 100 * 1024
"""The system takes no longer variables; a longer prompt is on the standard input alone."""
_PART_BYTES: Final = 1 << 16
_SHOWN_CHARS: Final = 500
_KEPT_BYTES: Final = 16 << 10
"""Of the standard error: many more than are shown, so that no half of a key is among those."""
_NO_CALLS: Final = "the agent asked the model nothing"


@dataclass(slots=True)
class RecordedEpisodes:
    """What became of the sessions. graded: trajectory ids; run_id: in which the platform lists them; left:
    why a session got no reward -> how many."""

    graded: list[str] = field(default_factory=list)
    run_id: str = ""
    left: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class CommandModel(ExternalModel):
    """A model of the gateway, and the command that asks it. split: of the tasks that are played."""

    command: tuple[str, ...] = ()
    split: str = ""
    timeout_s: float = COMMAND_S
    recorded: RecordedEpisodes = field(default_factory=RecordedEpisodes)

    def player(self, server: ModelServer, dialect: Dialect | None = None) -> "CommandPlayer":
        """Of one episode, with a session of its own."""
        return CommandPlayer(self, server)


class CommandPlayer(ModelPlayer):
    """Runs the command once; what it prints is the answer of the episode."""

    def __init__(self, model: CommandModel, server: ModelServer) -> None:
        super().__init__(server, model.dialect(model.model), {})
        self._model = model
        self._session_id = uuid.uuid4().hex

    async def reply(self, messages: Messages, tools: Messages, max_tokens: int) -> ChatReply:
        """The answer. Raises PlayerFailed for a command that fails, or does not end."""
        prompt = prompt_text(messages)
        printed = await self._run(prompt)
        return ChatReply(AssistantTurn(printed.strip()))

    async def ended(self, run: Run) -> None:
        """Give the session its reward. An episode without one leaves its session ungraded."""
        recorded = self._model.recorded
        if run.failure:
            recorded.left[f"the episode has no reward: {run.failure}"] += 1
            return
        reward = {"score": run.reward, "success": run.success, "group": run.run_id}
        if self._model.split:
            reward["split"] = self._model.split
        try:
            status, text = await self._server.answer(f"/sessions/{self._session_id}/reward", reward)
        except (Unavailable, PlayerFailed) as error:
            recorded.left[str(error)] += 1
            return
        if status == 200:
            said = json.loads(text)
            recorded.graded.append(str(said["trajectory_id"]))
            recorded.run_id = str(said["run_id"])
        else:
            recorded.left[_NO_CALLS if status == 404 else f"{status}: {self._server.shown(text)}"] += 1

    async def _run(self, prompt: str) -> str:
        model = self._model
        process = await asyncio.create_subprocess_exec(
            *model.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self._variables(prompt)},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(model.timeout_s):
                printed, said = await self._talk(process, prompt.encode())
        except TimeoutError as error:
            raise PlayerFailed(f"{self._shown} did not end within {model.timeout_s:g} s") from error
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                # Else `wait` would wait for pipes that are not read any more, or that a child of it holds.
                process._transport.close()  # type: ignore[attr-defined]
                await process.wait()
        if process.returncode != 0:
            last = hidden(said.decode(errors="replace"), model.key).strip()[-_SHOWN_CHARS:]
            raise PlayerFailed(f"{self._shown} ended with status {process.returncode}: {last}")
        return printed.decode(errors="replace")

    async def _talk(self, process: asyncio.subprocess.Process, prompt: bytes) -> tuple[bytes, bytes]:
        """What it prints, and the end of what it says on the standard error. Neither is held beyond its
        limit: a program that prints without end takes no memory. Raises PlayerFailed."""
        assert process.stdin and process.stdout and process.stderr  # noqa: PT018, S101 - pipes were asked for
        printed, said, _ = await asyncio.gather(
            self._answer(process.stdout), _end_of(process.stderr), _feed(process.stdin, prompt)
        )
        await process.wait()
        return printed, said

    async def _answer(self, stdout: asyncio.StreamReader) -> bytes:
        printed = bytearray()
        while part := await stdout.read(_PART_BYTES):
            printed += part
            if len(printed) > MAX_ANSWER_BYTES:
                raise PlayerFailed(
                    f"{self._shown} printed more than {MAX_ANSWER_BYTES} bytes, at most {MAX_ANSWER_BYTES} "
                    "are an answer",
                    "print the answer alone, and the rest to the standard error",
                )
        return bytes(printed)

    @property
    def _shown(self) -> str:
        return shlex.join(self._model.command)

    def _variables(self, prompt: str) -> dict[str, str]:
        """For clients of OpenAI and of Anthropic, and for whom that is not enough."""
        model = self._model
        origin = f"{model.url.removesuffix('/v1')}/s/{self._session_id}"
        fits = len(prompt.encode()) <= _MAX_VARIABLE_BYTES and "\0" not in prompt
        return {
            "OPENAI_BASE_URL": f"{origin}/v1",
            "OPENAI_API_KEY": model.key,
            "ANTHROPIC_BASE_URL": origin,
            "ANTHROPIC_API_KEY": model.key,
            "UPCYCLE_MODEL": model.model,
            "UPCYCLE_SESSION": self._session_id,
            **({"UPCYCLE_PROMPT": prompt} if fits else {}),
        }


async def _end_of(stream: asyncio.StreamReader) -> bytes:
    """The last bytes."""
    kept = b""
    while part := await stream.read(_PART_BYTES):
        kept = (kept + part)[-_KEPT_BYTES:]
    return kept


async def _feed(stdin: asyncio.StreamWriter, prompt: bytes) -> None:
    """A program need not read it."""
    with suppress(BrokenPipeError, ConnectionResetError):
        stdin.write(prompt)
        await stdin.drain()
    stdin.close()


def is_command(agent: str) -> bool:
    """Whether `--agent` names a command."""
    return agent.startswith(PREFIX)


async def command_model(agent: str, slug: str, *, split: str) -> CommandModel:
    """From `cmd: python my_agent.py` and the registered model that it asks. Raises PlayRefused,
    PlatformNotFound, Unavailable."""
    try:
        command = tuple(shlex.split(agent.removeprefix(PREFIX)))
    except ValueError as error:
        raise PlayRefused(
            f"--agent {agent!r} cannot be read: {error}", "quote it as a shell command"
        ) from error
    if not command:
        raise PlayRefused(f"--agent {agent!r} names no command", "write --agent 'cmd: python my_agent.py'")
    if shutil.which(command[0]) is None:
        raise PlayRefused(
            f"--agent: there is no program {command[0]!r}", "name one of PATH, or its path from here"
        )
    if not slug:
        raise PlayRefused(
            "an agent that is a command asks a registered model, and none is named: MODEL missing",
            f"upcycle eval tasks.py MODEL --agent {shlex.quote(agent)}",
        )
    model = await gateway_model(slug)
    return CommandModel(
        name=f"{PREFIX}{shlex.join(command)}#{slug}",
        url=model.url,
        model=model.model,
        key_variable=model.key_variable,
        dialect=model.dialect,
        headers=model.headers,
        key=model.key,
        command=command,
        split=split,
        timeout_s=COMMAND_S,
    )


def prompt_text(messages: Messages) -> str:
    """The prompt as one text: its messages one after another, without images."""
    return "\n\n".join(filter(None, map(_text, messages)))


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return str(content or "")
