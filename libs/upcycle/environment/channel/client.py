"""The runner's side of the control channel: one connection, calls matched to replies by id."""

import asyncio
import itertools
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from upcycle.environment.channel import frames
from upcycle.environment.channel.frames import ChannelClosed, ChannelError, NothingServed, understood
from upcycle.environment.channel.lines import LineProtocol
from upcycle.environment.channel.server import EXTENSION
from upcycle.environment.lifecycle import SHUTDOWN_S
from upcycle.environment.server_secrets import NOTHING_HIDDEN, HiddenValues
from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.errors import JudgeRefused, UpcycleError
from upcycle.guidance import parts_in
from upcycle.images import Image
from upcycle.judge_calls import JudgeQuestion, JudgeReply
from upcycle.states import STATE_S, StateEntry

AskJudge = Callable[[JudgeQuestion], Awaitable[JudgeReply]]

CONNECT_TIMEOUT_S = 10.0
CALL_TIMEOUT_S = 60.0
# A tool's own deadline is kept by the environment; if not even that answer comes, its process is stuck.
WEDGED_MARGIN_S = 1.0
MAX_UNASKED = 1000
"""Replies of an episode to calls whose caller is gone: those that come too late are a few."""


def state_of(reply: Mapping[str, Any]) -> StateEntry | None:
    """The state in a reply; raises what reading a row raises that another program wrote."""
    row = reply.get("state")
    return None if row is None else StateEntry.from_json(row)


class ChannelTimeout(UpcycleError, TimeoutError):
    """The environment did not answer a call in time; the call may still be running there."""

    kind = "timeout"


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to `hello`. speaks_tools: the server understands `tools.*` and trajectories in grade."""

    session_id: str
    name: str
    version: str
    bindings: tuple[Mapping[str, Any], ...]
    speaks_tools: bool


def _nothing_at(url: str, error: OSError, timeout_s: float) -> str:
    """What went wrong, and how an environment is served there."""
    reason = str(error)
    if isinstance(error, ConnectionRefusedError):
        reason = "nothing listens there"
    elif isinstance(error, TimeoutError):
        reason = f"no connection within {timeout_s:g} s"
    port = urlsplit(url).port
    way_out = f"; serve one there: python -m upcycle.environment.serve env.py --port {port}" if port else ""
    return f"no environment answers at {url}: {reason}{way_out}"


class ControlChannel:
    """One open control channel. Every call has a deadline and raises ChannelError (the environment refused or
    failed), ChannelTimeout or ChannelClosed."""

    def __init__(
        self, lines: LineProtocol, *, speaks_tools: bool = False, hidden: HiddenValues = NOTHING_HIDDEN
    ) -> None:
        """hidden: secrets that the environment's servers have, cut out of all that it says."""
        self._lines = lines
        self._hidden = hidden
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.ensure_future(self._read())
        self.welcome: Welcome | None = None
        self.url = ""
        """Where it was connected to; empty on a socket that was given."""
        self._speaks_tools = speaks_tools
        self._tool_limits: dict[str, float] = {}
        self.first_state: StateEntry | None = None
        """Of the task that was started last, at its prompt; None where its environment declares no state."""
        self.guidance = ""
        """The end of its prompt, where its start named a failed attempt."""
        self.guidance_parts: dict[str, str] = {}
        """The text of each part of that guidance, by its kind."""
        self._shuts_down = False
        self._num_unasked = 0

    @property
    def is_closed(self) -> bool:
        """The other side has hung up, or this one."""
        return self._reader.done()

    @classmethod
    async def over(
        cls, sock: socket.socket, *, speaks_tools: bool = False, hidden: HiddenValues = NOTHING_HIDDEN
    ) -> Self:
        """On a connected socket, for example one end of a socketpair. speaks_tools: the server is known to be
        of this package, so nothing needs to be asked with `hello`."""
        _, lines = await asyncio.get_running_loop().create_connection(LineProtocol, sock=sock)
        return cls(lines, speaks_tools=speaks_tools, hidden=hidden)

    @classmethod
    async def connect(cls, url: str, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Self:
        """To tcp://host:port or unix:///path. Raises NothingServed when nothing answers there."""
        loop, where = asyncio.get_running_loop(), urlsplit(url)
        try:
            async with asyncio.timeout(timeout_s):
                if where.scheme == "unix":
                    _, lines = await loop.create_unix_connection(LineProtocol, where.path)
                elif where.scheme == "tcp" and where.hostname and where.port:
                    _, lines = await loop.create_connection(LineProtocol, where.hostname, where.port)
                else:
                    raise ChannelError(
                        frames.INVALID_PARAMS,
                        f"cannot connect to {url!r}; use tcp://host:port or unix:///path",
                    )
        except (OSError, TimeoutError) as error:
            raise NothingServed(_nothing_at(url, error, timeout_s)) from error
        channel = cls(lines)
        channel.url = url
        return channel

    async def hello(self, session_id: str | None = None, *, timeout_s: float = CONNECT_TIMEOUT_S) -> Welcome:
        """Open a session, or resume a parked one; also the heartbeat."""
        params = {} if session_id is None else {"session_id": session_id}
        reply = await self.call("hello", params, timeout_s=timeout_s)
        with understood("the answer to hello"):
            env = reply.get("env") or {}
            self.welcome = Welcome(
                reply["session_id"],
                str(env.get("name", "")),
                str(env.get("version", "")),
                tuple(reply.get("bindings") or ()),
                EXTENSION in (reply.get("extensions") or ()),
            )
        self._speaks_tools = self.welcome.speaks_tools
        return self.welcome

    async def list_tasks(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[dict[str, Any]]:
        """Rows `{id, description, args: JSON schema}`."""
        reply = await self.call("tasks.list", {}, timeout_s=timeout_s)
        with understood("the answer to tasks.list"):
            return [dict(row) for row in reply["tasks"]]

    async def generate(
        self,
        task_id: str,
        seed: int,
        parent: Mapping[str, Any],
        *,
        solved: bool,
        proposal: Mapping[str, Any] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, Any]:
        """The arguments of a new task, which the scenario's generator makes. parent: the arguments of the
        task that it is made of. solved: whether a whole group solved that, or none of a group did. proposal:
        an answer `{"answer", "trajectory"}` to that task, which proposes the new one."""
        proposed = {} if proposal is None else {"proposal": dict(proposal)}
        params = {"id": task_id, "seed": seed, "parent": {"args": dict(parent), "solved": solved, **proposed}}
        reply = await self.call("tasks.generate", params, timeout_s=timeout_s)
        with understood("the answer to tasks.generate"):
            return dict(reply["args"])

    async def start(
        self,
        task_id: str,
        args: Mapping[str, Any],
        *,
        failed: Mapping[str, Any] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> str | list[dict[str, Any]]:
        """Start a task; returns its prompt, a text or messages. failed: an attempt `{"answer", "trajectory"}`
        after which the scenario guides; ChannelError where it cannot."""
        params: dict[str, Any] = {"id": task_id, "args": dict(args)}
        if self._speaks_tools:
            params["timeout_s"] = timeout_s
        if failed is not None:
            params["failed"] = dict(failed)
        reply = await self.call("tasks.start", params, timeout_s=timeout_s)
        with understood("the answer to tasks.start"):
            prompt: str | list[dict[str, Any]] = reply["prompt"]
            self.guidance = str(reply.get("guidance") or "")
            self.guidance_parts = parts_in(reply)
            if failed is not None and not self.guidance:
                raise ValueError(
                    f"task {task_id!r} was to be guided, and no guidance came; its server is older"
                )
            self.first_state = state_of(reply)
            self._shuts_down = reply.get("shuts_down") is True
            return prompt

    async def last_state(self, *, timeout_s: float = CALL_TIMEOUT_S) -> StateEntry | None:
        """The state before the grade; None where the environment declares none."""
        if self.first_state is None:
            return None
        reply = await self.call("tasks.state", {}, timeout_s=timeout_s)
        with understood("the answer to tasks.state"):
            return state_of(reply)

    async def list_tools(self, *, timeout_s: float = CALL_TIMEOUT_S) -> list[ToolSpec]:
        """The tools of an environment that speaks them."""
        reply = await self.call("tools.list", {}, timeout_s=timeout_s)
        with understood("the answer to tools.list"):
            tools = [ToolSpec.from_row(row) for row in reply["tools"]]
        self._tool_limits = {one.name: one.timeout_s for one in tools if one.timeout_s is not None}
        return tools

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        max_bytes: int | None = None,
    ) -> ToolResult:
        """Call a tool; what it refuses or raises is a ToolResult with is_error, and so is one that takes
        longer than timeout_s while the environment itself still answers. timeout_s: of a tool without a limit
        of its own, as `list_tools` told. max_bytes: longer results are cut there.
        """
        timeout_s = self._tool_limits.get(name, timeout_s)
        params: dict[str, Any] = {"name": name, "arguments": dict(arguments), "timeout_s": timeout_s}
        if max_bytes is not None:
            params["max_bytes"] = max_bytes
        margin_s = WEDGED_MARGIN_S if self.first_state is None else WEDGED_MARGIN_S + STATE_S
        reply = await self.call("tools.call", params, timeout_s=timeout_s + margin_s)
        with understood("the answer to tools.call"):
            return ToolResult(
                str(reply["content"]),
                bool(reply.get("is_error", False)),
                bool(reply.get("truncated", False)),
                state_of(reply),
                tuple(map(Image.from_row, reply.get("images") or ())),
            )

    async def grade(
        self,
        answer: Any,
        trajectory: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        judge: AskJudge | None = None,
    ) -> dict[str, Any]:
        """Grade the task in progress; returns the evaluation as a row (`score`, `subscores`, …). judge: asks
        a model what the scenario's judges ask; its time is not the environment's."""
        params: dict[str, Any] = {"answer": answer}
        if trajectory is not None and self._speaks_tools:
            params["trajectory"] = dict(trajectory)
        if judge is None or not self._speaks_tools:
            return await self.call("tasks.grade", params, timeout_s=timeout_s)
        reply = await self.call("tasks.grade", {**params, "judges": True}, timeout_s=timeout_s)
        while (asked := reply.get("judge")) is not None:
            with understood("a question to a judge"):
                question = JudgeQuestion(str(asked["model"]), str(asked["system"]), str(asked["user"]))
            try:
                said: dict[str, Any] = (await judge(question)).to_json()
            except UpcycleError as error:
                said = {"error": str(error), "refused": isinstance(error, JudgeRefused)}
            reply = await self.call("tasks.judged", {**said, "id": asked["id"]}, timeout_s=timeout_s)
        return reply

    async def cancel(self, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Cancel the task; a start or grade in progress fails."""
        await self.call("tasks.cancel", {}, timeout_s=timeout_s)

    async def shut_down(self) -> None:
        """Let the environment run what it declares for the end of an episode, before its process is ended.
        Never raises; without such a declaration nothing is sent."""
        if self._shuts_down and not self.is_closed:
            self._shuts_down = False
            with suppress(UpcycleError):
                await self.call("environment.close", {}, timeout_s=SHUTDOWN_S)

    async def call(self, method: str, params: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """One JSON-RPC call."""
        call_id = next(self._ids)
        frame = {"jsonrpc": "2.0", "id": call_id, "method": method, "params": dict(params)}
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await self._lines.send(frames.encode(frame, f"the call {frames.call_named(frame)}"))
                if self._reader.done():
                    raise ChannelClosed("the control channel was closed by the other side")
                return await reply
        except TimeoutError as error:
            raise ChannelTimeout(f"{method} got no answer within {timeout_s:g} s") from error
        finally:
            self._waiting.pop(call_id, None)

    async def close(self) -> None:
        """Close the connection at once. Idempotent."""
        self._reader.cancel()
        await asyncio.wait([self._reader])
        if self._lines.transport is not None:
            self._lines.transport.abort()

    async def _read(self) -> None:
        ended: UpcycleError = ChannelClosed("the control channel was closed here")
        try:
            while True:
                frame = self._hidden.cut_from(frames.decode(await self._lines.read_line()))
                with understood("a frame"):
                    self._settle(frame)
        except UpcycleError as error:
            ended = error
        finally:
            for reply in self._waiting.values():
                if not reply.done():
                    reply.set_exception(ended)
            if self._lines.transport is not None:  # lines without a reader would pile up
                self._lines.transport.abort()

    def _settle(self, frame: frames.Frame) -> None:
        reply = self._waiting.get(frame.get("id", 0))
        error = frame.get("error")
        self._num_unasked += reply is None
        if self._num_unasked > MAX_UNASKED:
            raise ChannelError(frames.INVALID_REQUEST, f"over {MAX_UNASKED} replies without a call")
        if error is not None:
            data = error.get("data") or {}
            failure = ChannelError(
                int(error.get("code", frames.SERVER_ERROR)),
                str(error.get("message", "")),
                str(data.get("kind", "")),
                str(data.get("traceback", "")),
            )
            if frame.get("id") is None:
                raise failure
            if reply is not None and not reply.done():
                reply.set_exception(failure)
        elif reply is not None and not reply.done():
            reply.set_result(dict(frame.get("result") or {}))
