"""The environment's side of the control channel.

Each connection goes on reading frames while calls run, so that `tasks.cancel` and heartbeats are answered
during a long start or grade. A call that fails gets an error frame and leaves the connection open.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from upcycle.environment.channel import frames
from upcycle.environment.channel.frames import ChannelClosed, ChannelError, Frame, FrameTooLarge
from upcycle.environment.channel.lines import LineProtocol
from upcycle.environment.channel.params import arguments_of, seconds_param, text_param
from upcycle.environment.channel.session import LocalSession, Session, as_channel_error
from upcycle.environment.channel.sessions import Sessions
from upcycle.raised import RAISED

if TYPE_CHECKING:
    from upcycle.environment.core import Environment

# Announced in hello: `tools.list`, `tools.call`, and `trajectory` beside `answer` in tasks.grade.
EXTENSION = "upcycle/1"

SESSION_IN_URL = "{session}"
"""In the URL of a binding: the id of the session that is told of it."""

TUNNEL_CONNECT_TIMEOUT_S = 10.0


class ChannelServer:
    """Serves one environment on any number of connections. Sessions outlive connections. sessions: by
    default they all run in this process, and share the module state of the environment's file."""

    def __init__(self, environment: "Environment", sessions: Sessions | None = None) -> None:
        self.environment = environment
        self.sessions = sessions or Sessions(partial(LocalSession, environment))

    async def serve_socket(self, sock: socket.socket) -> None:
        """Speak the channel on one connected socket until it ends."""
        loop = asyncio.get_running_loop()
        _, lines = await loop.create_connection(LineProtocol, sock=sock)
        await self.serve_lines(lines)

    async def serve_lines(self, lines: LineProtocol) -> None:
        """Speak the channel on one open connection until it ends."""
        await Connection(self, lines).run()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Serve TCP. port 0: the system chooses. The caller closes the returned server."""
        loop = asyncio.get_running_loop()
        running: set[asyncio.Task[None]] = set()

        class Accepted(LineProtocol):
            def connection_made(accepted, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                task = loop.create_task(self.serve_lines(accepted))
                running.add(task)
                task.add_done_callback(running.discard)

        return await loop.create_server(Accepted, host, port)


class Connection:
    """One connection: its session and the calls in progress."""

    def __init__(self, server: ChannelServer, lines: LineProtocol) -> None:
        self._server = server
        self._environment = server.environment
        self._lines = lines
        self._session: Session | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._over = False
        self._methods: dict[str, Callable[[Frame], Awaitable[Frame]]] = {
            "hello": self._hello,
            "tasks.list": self._tasks_list,
            "tasks.generate": self._tasks_generate,
            "tasks.start": self._tasks_start,
            "tasks.grade": self._tasks_grade,
            "tasks.judged": self._tasks_judged,
            "tasks.cancel": self._tasks_cancel,
            "tasks.state": self._tasks_state,
            "tools.list": self._tools_list,
            "tools.call": self._tools_call,
            "environment.close": self._environment_close,
            "bye": self._bye,
        }

    async def run(self) -> None:
        """Read until the client closes the connection, then keep its session for a reconnect."""
        try:
            if not await self._first_frame():
                return
            while not self._over:
                self._accept(await self._lines.read_line())
        except FrameTooLarge as error:
            await self._send(frames.error_frame(None, error))
        except ChannelClosed:
            self._over = True
        finally:
            await self._leave()

    async def _first_frame(self) -> bool:
        """The first frame may turn the connection into a tunnel; false when it did."""
        line = await self._lines.read_line()
        try:
            frame = frames.decode(line)
        except ChannelError:
            frame = {}
        if frame.get("method") != "tunnel.open":
            self._accept(line)
            return True
        try:
            await self._open_tunnel(frame)
        except ChannelError as error:
            await self._send(frames.error_frame(frame.get("id"), error))
        return False

    def _accept(self, line: bytes) -> None:
        task = asyncio.ensure_future(self._answer(line))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _answer(self, line: bytes) -> None:
        call_id, about = None, ""
        try:
            frame = frames.decode(line)
            call_id, about = frame.get("id"), f"the answer to {frames.call_named(frame)}"
            reply = frames.result_frame(call_id, await self._dispatch(frame))
        except RAISED as error:
            reply = frames.error_frame(call_id, as_channel_error(error, self._environment))
        await self._send(self._environment.servers.hidden.cut_from(reply), about)
        if self._over and self._lines.transport is not None:
            self._lines.transport.close()

    async def _dispatch(self, frame: Frame) -> Frame:
        method, params = frame.get("method"), frame.get("params")
        if not isinstance(method, str) or method not in self._methods:
            known = ", ".join(self._methods)
            hint = "only as the first frame of a connection" if method == "tunnel.open" else f"it has {known}"
            raise ChannelError(frames.METHOD_NOT_FOUND, f"unknown method {method!r}; {hint}")
        if params is not None and not isinstance(params, dict):
            kind = type(params).__name__
            raise ChannelError(frames.INVALID_PARAMS, f"params is of type {kind}, not an object")
        return await self._methods[method](params or {})

    async def _hello(self, params: Frame) -> Frame:
        wanted = params.get("session_id")
        if self._session is None:
            self._session = self._server.sessions.open(wanted)
        elif wanted not in (None, self._session.session_id):
            resumed = self._server.sessions.open(wanted)
            await self._server.sessions.release(self._session)
            self._session = resumed
        return {
            "session_id": self._session.session_id,
            "env": {"name": self._environment.name, "version": self._environment.version},
            "bindings": self._bindings(self._session.session_id),
            "extensions": [EXTENSION],
        }

    def _bindings(self, session_id: str) -> list[Frame]:
        """A server of several sessions knows by its URL whose tools are called."""
        rows = [binding.to_json() for binding in self._environment.bindings.values()]
        return [{**row, "url": row["url"].replace(SESSION_IN_URL, session_id)} for row in rows]

    async def _tasks_list(self, _params: Frame) -> Frame:
        rows = [
            {
                "id": name,
                "description": scenario.schema.description,
                "args": scenario.schema.parameters,
                **({"guidance": True} if scenario.is_guided else {}),
                **({"generator": True} if scenario.generates else {}),
                **({"proposed_by": scenario.proposer} if scenario.proposer else {}),
                **({"left_over": True} if scenario.leaves_tasks else {}),
            }
            for name, scenario in self._environment.scenarios.items()
        ]
        return {"tasks": rows}

    async def _tasks_generate(self, params: Frame) -> Frame:
        name, parent, seed = text_param(params, "id"), arguments_of(params, "parent"), params.get("seed")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ChannelError(frames.INVALID_PARAMS, f"seed is {type(seed).__name__}, not a whole number")
        return await self._current().generate(name, seed, parent)

    async def _tasks_start(self, params: Frame) -> Frame:
        name, arguments = text_param(params, "id"), arguments_of(params, "args")
        failed = arguments_of(params, "failed") if "failed" in params else None
        timeout_s = seconds_param(params, "timeout_s")
        return await self._current().start(name, arguments, failed=failed, timeout_s=timeout_s)

    async def _tasks_grade(self, params: Frame) -> Frame:
        if "answer" not in params:
            raise ChannelError(frames.INVALID_PARAMS, "answer is missing")
        if self._current().is_unused:
            idle, self._session = self._current(), self._server.sessions.resume_only()
            self._server.sessions.forget(idle)
        trajectory, judges = arguments_of(params, "trajectory"), params.get("judges") is True
        return await self._current().grade(params["answer"], trajectory, judges=judges)

    async def _tasks_judged(self, params: Frame) -> Frame:
        return await self._current().judged(params)

    async def _tasks_cancel(self, _params: Frame) -> Frame:
        return await self._current().cancel()

    async def _tasks_state(self, _params: Frame) -> Frame:
        return await self._current().last_state()

    async def _tools_list(self, _params: Frame) -> Frame:
        return await self._current().list_tools()

    async def _tools_call(self, params: Frame) -> Frame:
        return await self._current().call_tool(params)

    async def _environment_close(self, _params: Frame) -> Frame:
        return await self._current().shut_down()

    async def _bye(self, _params: Frame) -> Frame:
        self._over = True
        return {"goodbye": True}

    async def _open_tunnel(self, frame: Frame) -> None:
        name = text_param(arguments_of(frame, "params"), "capability")
        binding = self._environment.bindings.get(name)
        if binding is None:
            known = ", ".join(self._environment.bindings) or "none"
            raise ChannelError(frames.INVALID_PARAMS, f"unknown capability {name!r}; it has {known}")
        where = urlsplit(binding.url)
        try:
            async with asyncio.timeout(TUNNEL_CONNECT_TIMEOUT_S):
                _, far = await asyncio.get_running_loop().create_connection(
                    LineProtocol, where.hostname or "127.0.0.1", where.port or 80
                )
        except (OSError, TimeoutError) as error:
            raise ChannelError(frames.SERVER_ERROR, f"cannot reach capability {name!r}: {error}") from error
        await self._send(frames.result_frame(frame.get("id"), {"capability": name}))
        far.splice(self._lines)
        self._lines.splice(far)
        await self._lines.closed

    def _current(self) -> Session:
        if self._session is None:
            self._session = self._server.sessions.open(None)
        return self._session

    async def _send(self, frame: Frame, about: str = "") -> None:
        try:
            data = frames.encode(frame, about)
        except FrameTooLarge as error:
            data = frames.encode(frames.error_frame(frame.get("id"), error))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:  # of an author's `info`, say
            refused = ChannelError(frames.SERVER_ERROR, f"the answer is no JSON: {error}")
            data = frames.encode(frames.error_frame(frame.get("id"), refused))
        try:
            await self._lines.send(data)
        except ChannelClosed:
            self._over = True

    async def _leave(self) -> None:
        if self._session is not None:
            await self._server.sessions.release(self._session)
        if self._calls:
            # Replies in progress (the goodbye) get out; what hangs is abandoned with the connection.
            _, late = await asyncio.wait(self._calls, timeout=1.0)
            for task in late:
                task.cancel()
        if self._lines.transport is not None:
            self._lines.transport.close()
