"""An MCP server that misbehaves on request, for either SDK: `stdio` (default) or `http` on a free port."""

import os
import socket
import sys
import time

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # SDK 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[attr-defined, no-redef]

server = MCPServer("odd")


@server.tool()
def forecast(city: str) -> str:
    """Tomorrow's weather."""
    return f"rain in {city}"


@server.tool()
def broken() -> str:
    """Always fails."""
    raise RuntimeError("no satellite")


@server.tool()
async def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
async def freeze() -> str:
    """Answer nothing from here on."""
    time.sleep(3600)  # noqa: ASYNC251 - this is what it is for
    return "late"


@server.tool()
def large(num_bytes: int) -> str:
    """As many letters."""
    return "x" * num_bytes


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        import uvicorn

        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        app = server.streamable_http_app()
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
    else:
        server.run("stdio")
