"""Tools as streamable HTTP on a loopback port: of the session that the path of a request names."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from upcycle.environment.channel.frames import INVALID_PARAMS, ChannelError
from upcycle.environment.mcp import ToolBackend, mcp_server
from upcycle.environment.tools import ToolResult, ToolSpec
from upcycle.errors import DefinitionError, PortTaken, UnknownName
from upcycle.images import Image

if TYPE_CHECKING:
    from upcycle.environment.channel.session import Session

START_S: Final = 10.0
STOP_S: Final = 5.0


class SessionTools:
    """Implements ToolBackend: the tools of one session of the control channel."""

    def __init__(self, session: "Session") -> None:
        self._session = session

    async def listed(self) -> list[ToolSpec]:
        """As the session has them."""
        rows = (await self._session.list_tools())["tools"]
        return [ToolSpec.from_row(row) for row in rows]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Within the session's own limit."""
        try:
            row = await self._session.call_tool({"name": name, "arguments": dict(arguments)})
        except ChannelError as error:
            if error.code == INVALID_PARAMS:
                raise UnknownName(str(error)) from error
            raise
        images = tuple(map(Image.from_row, row.get("images") or ()))
        return ToolResult(row["content"], row["is_error"], row["truncated"], images=images)


class McpEndpoint:
    """An HTTP server for the length of `async with`, which gives its origin. path: of the requests, with
    Starlette's placeholders; backend: whose tools a request means."""

    def __init__(
        self, title: str, version: str, path: str, backend: Callable[[Any], ToolBackend], *, port: int = 0
    ) -> None:
        server = mcp_server(title, version, backend)
        self._app = server.streamable_http_app(stateless_http=True, streamable_http_path=path)
        self._port = port
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> str:
        """Raises PortTaken."""
        import uvicorn

        listener = _listener(self._port)
        config = uvicorn.Config(self._app, log_level="warning", lifespan="on")
        self._server = uvicorn.Server(config)
        # The caller's own signal handling stops it; uvicorn must not take the handlers over.
        self._task = asyncio.create_task(self._server._serve(sockets=[listener]))
        async with asyncio.timeout(START_S):
            while not self._server.started:
                if self._task.done():
                    await self._task
                await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=STOP_S)


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OverflowError as error:
        listener.close()
        raise DefinitionError(f"port {port} is none", "a port is a number from 0 to 65535") from error
    except OSError as error:
        listener.close()
        raise PortTaken(f"port {port} of this machine is taken", "give another --port") from error
    return listener
