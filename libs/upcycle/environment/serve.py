"""`python -m upcycle.environment.serve env.py`: serve an environment on the control channel over TCP.

Prints `UPCYCLE_SERVE_PORT=<n>` once it accepts connections. Its tools are also offered as an MCP server
through the channel's tunnel (capability `mcp`), so that clients that know only MCP can call them.
"""

import argparse
import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycle.environment.channel.server import ChannelServer
from upcycle.environment.loading import load_environment

if TYPE_CHECKING:
    from upcycle.environment.core import Environment

MCP_PROTOCOL = "mcp/2025-11-25"


async def serve(
    environment: "Environment", *, host: str, port: int, with_mcp: bool, stop: asyncio.Event
) -> None:
    """Serve until `stop` is set."""
    async with AsyncExitStack() as stack:
        await environment.open()
        stack.push_async_callback(environment.close)
        if with_mcp and environment.tools:
            url = await stack.enter_async_context(_McpEndpoint(environment))
            environment.bind("mcp", MCP_PROTOCOL, url, transport="streamable-http")
        server = await ChannelServer(environment).listen(host, port)
        stack.callback(server.close)
        print(f"UPCYCLE_SERVE_PORT={server.sockets[0].getsockname()[1]}", flush=True)
        await stop.wait()


class _McpEndpoint:
    """The environment's tools as streamable HTTP on a loopback port; reached through the tunnel."""

    def __init__(self, environment: "Environment") -> None:
        self._environment = environment
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> str:
        import uvicorn

        app = self._environment.serve_mcp().streamable_http_app(stateless_http=True)
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="on")
        self._server = uvicorn.Server(config)
        # The environment's own signal handling stops it; uvicorn must not take the handlers over.
        self._task = asyncio.create_task(self._server._serve())
        async with asyncio.timeout(10):
            while not self._server.started:
                if self._task.done():
                    await self._task
                await asyncio.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/mcp"

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=5)


async def _main(arguments: argparse.Namespace) -> None:
    environment = load_environment(arguments.path, arguments.name)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(
        environment, host=arguments.host, port=arguments.port, with_mcp=not arguments.no_mcp, stop=stop
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="Python file that declares the Environment")
    parser.add_argument("--name", help="which environment, if the file declares several")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: the system chooses; it is printed")
    parser.add_argument("--no-mcp", action="store_true", help="do not offer the tools as an MCP server")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
