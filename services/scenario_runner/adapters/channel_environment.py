"""An environment that is reached over a control channel; translates the channel's errors."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from episodes import EpisodeFailure
from scenario_runner.domain.environments import (
    EnvironmentDescription,
    EnvironmentKilled,
    EnvironmentLost,
    EpisodeError,
    EpisodeFault,
    EpisodeTimeout,
    EpisodeTimeouts,
    EpisodeToPlay,
    Grade,
    Message,
    PolicyFault,
    TaskOrder,
    ToolOutcome,
)
from upcycle.environment.channel import ChannelClosed, ChannelError, ControlChannel
from upcycle.environment.channel.client import WEDGED_MARGIN_S, AskJudge, ChannelTimeout
from upcycle.environment.channel.frames import understood
from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.errors import InfrastructureError, RewardInvalid
from upcycle.images import images_in
from upcycle.rewards import evaluation_result, foreign_result
from upcycle.states import STATE_S, StateEntry

T = TypeVar("T")

_SLICE_S: Final = 1.0
"""A limited call is timed in slices: a process that froze counts one of them, not the time it was frozen."""

_ERROR_CHARS: Final = 400
_TRACEBACK_CHARS: Final = 1000
_PRINTED_CHARS: Final = 400

_BLIND: Final = (
    "no model of this platform sees images; play it with an agent of others (upcycle eval TASKS claude), or "
    "show text instead"
)

ToolCaller = Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True)
class EpisodeProcess:
    """What the host sees of the process behind a channel. printed: the end of what it printed. has_ended:
    whether it is known to have ended; the channel may be read to its end later."""

    printed: Callable[[], str] = str
    has_ended: Callable[[], bool] = bool


_UNSEEN: Final = EpisodeProcess()


class ChannelEnvironment:
    """Implements LiveEnvironment. `on_close` ends whatever is behind the channel, and before the channel: a
    process that is killed need not see it end. `explain_loss` says why the channel broke, once it is
    known. tool_caller: of a foreign environment, which knows only the common channel; its grades are read as
    that allows. source_digest: of the code behind the channel, "" where it is not known."""

    def __init__(
        self,
        channel: ControlChannel,
        timeouts: EpisodeTimeouts,
        *,
        on_close: Callable[[], Awaitable[object]],
        explain_loss: Callable[[], Awaitable[Exception]],
        tool_caller: ToolCaller | None = None,
        source_digest: str = "",
        process: EpisodeProcess = _UNSEEN,
    ) -> None:
        self.source_digest = source_digest
        self._process = process
        self.prompt: tuple[Message, ...] = ()
        self.tools: tuple[ToolSpec, ...] = ()
        self._channel = channel
        self._timeouts = timeouts
        self._on_close = on_close
        self._explain_loss = explain_loss
        self._call_tool = tool_caller or self._over_channel
        self._read_grade = foreign_result if tool_caller else evaluation_result
        self._closed = False
        self._was_called = False

    async def start(self, episode: EpisodeToPlay) -> None:
        """Play the scenario to its prompt. Raises EpisodeFault, EpisodeTimeout, EnvironmentLost."""
        self.prompt = await self._guarded("start", self._started(episode))

    @property
    def guidance(self) -> str:
        """The end of the prompt of a guided episode; "" of any other."""
        return self._channel.guidance

    @property
    def guidance_parts(self) -> Mapping[str, str]:
        """The same by kind, in its order."""
        return self._channel.guidance_parts

    async def generate(self, order: TaskOrder) -> Mapping[str, Any]:
        """The arguments of a new task. Raises EpisodeFault, EpisodeTimeout, EnvironmentLost."""
        arguments, limit_s = json.loads(order.args_json), self._timeouts.start_s
        call = self._channel.generate(
            order.scenario,
            order.seed,
            arguments,
            solved=order.solved,
            proposal=order.proposal,
            timeout_s=limit_s,
        )
        return await self._guarded("generate", call)

    async def list_tools(self) -> None:
        """Ask the environment for its tools."""
        listed = await self._guarded("tools", self._channel.list_tools(timeout_s=self._timeouts.start_s))
        self.tools = tuple(listed)

    @property
    def first_state(self) -> StateEntry | None:
        """Of the environment at the prompt; None where it declares none."""
        return self._channel.first_state

    async def last_state(self) -> StateEntry:
        """The same before the grade. Never raises: what failed is its note."""
        limit_s = STATE_S + WEDGED_MARGIN_S
        try:
            state = await self._guarded("state", self._channel.last_state(timeout_s=limit_s))
        except EpisodeError as error:
            return StateEntry(note=f"it could not be read: {error}")
        return state or StateEntry(note="the environment declares no state")

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], *, limit_s: float | None = None
    ) -> ToolOutcome:
        """Raises PolicyFault (the call ended or blocked its process, or took longer than limit_s),
        EnvironmentLost, EpisodeFault (the outside world failed). What a tool raises is an outcome."""
        started, died_before = time.monotonic(), self._is_dead
        try:
            result = await self._limited(name, self._called(name, arguments), limit_s)
        except EpisodeError as error:
            raise self._blamed(error, is_idle=died_before) from error
        if result.images:
            raise EpisodeFault(EpisodeFailure.ENVIRONMENT_BROKEN, f"tool {name} returned an image: {_BLIND}")
        self._was_called = True
        duration_s = time.monotonic() - started
        return ToolOutcome(result.text, result.is_error, result.truncated, duration_s, result.state)

    async def grade(self, answer: str, transcript: Mapping[str, Any], judge: AskJudge | None = None) -> Grade:
        """judge: asks what the scenario's judges ask; its time is not the environment's. Raises EpisodeFault,
        EpisodeTimeout, EnvironmentLost; PolicyFault where a call of the policy had ended the process
        already."""
        started, died_before = time.monotonic(), self._is_dead
        call = self._channel.grade(answer, transcript, timeout_s=self._timeouts.grade_s, judge=judge)
        try:
            row = await self._guarded("grade", call)
        except EpisodeError as error:
            raise (self._blamed(error, is_idle=True) if died_before else error) from error
        try:
            result = self._read_grade(row)
            subscores = tuple(subscore.to_json() for subscore in result.subscores)
        except InfrastructureError as error:
            raise EpisodeFault(EpisodeFailure.EXTERNAL_FAILURE, str(error)) from error
        except (
            TypeError,
            ValueError,
            OverflowError,
            RecursionError,
        ) as error:  # RewardInvalid is a ValueError
            raise EpisodeFault(RewardInvalid.kind, str(error)) from error
        duration_s, by_turn = time.monotonic() - started, result.turn_rewards
        if by_turn and len(by_turn) != (num_turns := len(transcript.get("turns", ()))):
            text = (
                f"turn_rewards has {len(by_turn)} numbers, the episode {num_turns} turns: give one for each"
            )
            raise EpisodeFault(RewardInvalid.kind, text)
        return Grade(
            result.score, bool(result.success), subscores, result.info, duration_s, turn_rewards=by_turn
        )

    @property
    def _is_dead(self) -> bool:
        return self._channel.is_closed or self._process.has_ended()

    def _blamed(self, error: EpisodeError, *, is_idle: bool) -> EpisodeError:
        """Whose failure it was that a process ended or hung. is_idle: no call ran in it; then it is the
        policy's only if it had called anything before: what a call left behind, memory included, may kill."""
        if is_idle and not self._was_called:
            return EnvironmentLost(str(error))
        if isinstance(error, EpisodeTimeout):
            return PolicyFault(EpisodeFailure.TOOL_TIMEOUT, str(error))
        is_end = isinstance(error, EpisodeFault) and error.failure_kind == EpisodeFailure.SCENARIO_ERROR
        if is_end or isinstance(error, EnvironmentKilled):
            return PolicyFault(EpisodeFailure.PROCESS_ENDED, str(error))
        return error

    async def close(self) -> None:
        """End it with everything it started. Idempotent."""
        if not self._closed:
            self._closed = True
            await self._channel.shut_down()
            try:
                await self._on_close()
            finally:
                await self._channel.close()

    async def _started(self, episode: EpisodeToPlay) -> tuple[Message, ...]:
        arguments, limit_s = json.loads(episode.args_json), self._timeouts.start_s
        prompt = await self._channel.start(
            episode.scenario, arguments, failed=episode.failed, timeout_s=limit_s
        )
        with understood("the prompt"):
            rows = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            return tuple(map(_message, rows))

    async def _limited(self, name: str, call: Awaitable[T], limit_s: float | None) -> T:
        guarded = self._guarded(f"tool {name}", call)
        if limit_s is None or limit_s >= self._tool_s(name):
            return await guarded
        running, left_s = asyncio.ensure_future(guarded), limit_s
        try:
            while left_s > 0:
                await asyncio.wait([running], timeout=min(_SLICE_S, left_s))
                if running.done():
                    return running.result()
                left_s -= _SLICE_S
        finally:
            running.cancel()
        raise EpisodeTimeout(
            f"tool {name} took longer than the {limit_s:.1f} s that its episode had left for it"
        )

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            return await self._call_tool(name, arguments)
        except ChannelError as error:
            if error.error_kind in (EpisodeFailure.EXTERNAL_FAILURE, EpisodeFailure.ENVIRONMENT_LOST):
                raise
            # An unknown tool or malformed arguments: the policy gets the error as the result and goes on.
            return ToolResult(str(error), is_error=True)

    async def _over_channel(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._channel.call_tool(
            name, arguments, timeout_s=self._tool_s(name), max_bytes=self._timeouts.tool_result_bytes
        )

    def _tool_s(self, name: str) -> float:
        """The tool's own limit, where it has one."""
        own = next((tool.timeout_s for tool in self.tools if tool.name == name), None)
        return self._timeouts.tool_s if own is None else own

    async def _guarded(self, what: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except ChannelError as error:
            if error.error_kind == EpisodeFailure.ENVIRONMENT_LOST:  # of a server that runs others too
                raise EnvironmentLost(str(error)) from error
            text = fault_text(str(error), error.traceback, self._process.printed())
            raise EpisodeFault(error.error_kind or EpisodeFailure.SCENARIO_ERROR, text) from error
        except ChannelTimeout as error:
            raise EpisodeTimeout(f"{what}: {error}") from error
        except ChannelClosed as error:
            raise await self._explain_loss() from error


def _message(row: Mapping[str, Any]) -> Message:
    content = row["content"]
    if images_in(content):
        raise EpisodeFault(EpisodeFailure.ENVIRONMENT_BROKEN, f"the prompt has an image: {_BLIND}")
    if isinstance(content, list):
        # Content parts, as OpenAI's clients write them: a text policy reads the text.
        content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    if not isinstance(content, str):
        raise TypeError(f"its content is of type {type(content).__name__}, not text")
    return {"role": str(row["role"]), "content": content, "name": str(row.get("name", ""))}


def description_from(row: Mapping[str, Any]) -> EnvironmentDescription:
    """The description that a zygote wrote of its environment."""
    tools = tuple(map(ToolSpec.from_row, row["tools"]))
    return EnvironmentDescription(
        row["name"],
        row["version"],
        row["scenarios"],
        tools,
        row["source_digest"],
        guided=frozenset(row["guided"]),
        generating=frozenset(row["generating"]),
        proposers=row["proposers"],
        left_overs=frozenset(row["left_overs"]),
        secrets=row["secrets"],
    )


def fault_text(error: str, traceback: str, printed: str) -> str:
    """What an author needs of a failure, within what a gRPC status carries: the error, the end of its
    traceback with file and line, and the end of what the episode printed."""
    parts = [error[:_ERROR_CHARS], traceback[-_TRACEBACK_CHARS:].strip()]
    parts += [f"it printed:\n{printed[-_PRINTED_CHARS:].strip()}"] if printed.strip() else []
    return "\n".join(part for part in parts if part)


def loss_of(status: int, output: str) -> Exception:
    """Why an episode's process ended by itself. status: exit status, negative for a signal."""
    said = f"; it printed: {output}" if output else ""
    if status >= 0:
        return EpisodeFault(
            EpisodeFailure.SCENARIO_ERROR, f"the scenario ended its own process with status {status}{said}"
        )
    if status == -24:  # SIGXCPU
        return EpisodeTimeout(f"the environment used up its processor time{said}")
    return EnvironmentKilled(f"the environment's process was killed by signal {-status}{said}")
