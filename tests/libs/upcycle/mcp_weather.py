"""A small MCP server, started as a program by the tests."""

import sys
import time

from mcp.server.mcpserver import MCPServer

server: MCPServer = MCPServer("weather", version="1.0.0")


@server.tool()
def forecast(city: str) -> str:
    """Tomorrow's weather."""
    return f"rain in {city}"


@server.tool()
def broken() -> str:
    """Always fails."""
    raise RuntimeError("no satellite")


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        import socket

        import uvicorn

        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        app = server.streamable_http_app(stateless_http=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
    else:
        server.run("stdio")
        if sys.argv[1:] == ["lingers"]:
            time.sleep(60)  # its client kills it
