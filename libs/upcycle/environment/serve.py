"""`python -m upcycle.environment.serve env.py`: serve an environment on the control channel over TCP.

Prints `UPCYCLE_SERVE_PORT=<n>` once it accepts connections. Each session has a forked process of its own. Its
tools are also offered as an MCP server through the channel's tunnel (capability `mcp`), so that clients that
know only MCP can call them.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from upcycle.environment.channel.forked_session import ForkedSession, SessionLimits
from upcycle.environment.channel.server import SESSION_IN_URL, ChannelServer
from upcycle.environment.channel.session import LocalSession
from upcycle.environment.channel.sessions import Sessions
from upcycle.environment.forking import can_fork
from upcycle.environment.loading import load_environment, why_not_loaded
from upcycle.environment.session_forks import SessionForks
from upcycle.errors import Failed, PortTaken

if TYPE_CHECKING:
    from upcycle.environment.core import Environment

MCP_PROTOCOL: Final = "mcp/2025-11-25"
_SESSION: Final = "session"
_USAGE: Final = 2
Listening = Callable[[int], None]
"""Told the port."""


async def serve(
    environment: "Environment",
    sessions: Sessions,
    *,
    host: str,
    port: int,
    with_mcp: bool,
    stop: asyncio.Event,
    listening: Listening = lambda port: None,
) -> None:
    """Serve until `stop` is set. listening: called with the port, before it is printed."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(environment.close)
        stack.push_async_callback(sessions.close)
        if with_mcp and (environment.tools or environment.attaches_tools):
            await stack.enter_async_context(_mcp(environment, sessions))
        try:
            server = await ChannelServer(environment, sessions).listen(host, port)
        except (OSError, OverflowError) as error:
            raise PortTaken(f"cannot listen on {host}:{port}: {error}", "give another --port") from error
        stack.callback(server.close)
        bound = server.sockets[0].getsockname()[1]
        listening(bound)
        print(f"UPCYCLE_SERVE_PORT={bound}", flush=True)
        await stop.wait()


@contextlib.asynccontextmanager
async def _mcp(environment: "Environment", sessions: Sessions) -> Any:
    from upcycle.environment.mcp_endpoint import McpEndpoint, SessionTools

    def backend(request: Any) -> SessionTools:
        return SessionTools(sessions.known(request.path_params[_SESSION]))

    path = f"/sessions/{{{_SESSION}}}/mcp"
    async with McpEndpoint(environment.name, environment.version, path, backend) as origin:
        url = f"{origin}/sessions/{SESSION_IN_URL}/mcp"
        environment.bind("mcp", MCP_PROTOCOL, url, transport="streamable-http")
        yield


async def _main(
    environment: "Environment",
    forks: SessionForks | None,
    arguments: argparse.Namespace,
    listening: Listening,
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if arguments.until_stdin_closes:
        asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
    limits = SessionLimits(arguments.max_sessions, arguments.call_s, arguments.parked_s)
    if forks is None:
        sessions = Sessions(partial(LocalSession, environment), parked_s=limits.parked_s, max_live=1)
    else:
        sessions = Sessions(partial(ForkedSession, forks, limits), parked_s=limits.parked_s)
        forks.gone.add_done_callback(lambda _: stop.set())
    await serve(
        environment,
        sessions,
        host=arguments.host,
        port=arguments.port,
        with_mcp=not arguments.no_mcp,
        stop=stop,
        listening=listening,
    )
    if forks is not None and forks.gone.done():
        raise Failed("the process that forks sessions has ended", "start the server again")


def add_serving_options(parser: argparse.ArgumentParser) -> None:
    """Where it listens, and what sessions may take."""
    default, add = SessionLimits(), parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: the system chooses; it is printed")
    add("--no-mcp", action="store_true", help="do not offer the tools as an MCP server")
    add("--max-sessions", type=int, default=default.max_sessions, help="processes at once")
    add("--call-s", type=float, default=default.call_s, help="limit of one call, in seconds")
    add("--parked-s", type=float, default=default.parked_s, help="a started task waits so long for a client")
    add("--until-stdin-closes", action="store_true", help="end with the program that started it")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="Python file that declares the Environment")
    parser.add_argument("--name", help="which environment, if the file declares several")
    add_serving_options(parser)
    return parser.parse_args()


def run(
    environment: "Environment", arguments: argparse.Namespace, listening: Listening = lambda port: None
) -> None:
    """Serve a loaded environment with these options until it is stopped, or ends with its forks."""
    # Before there is an event loop: a fork of a process with one would have it twice.
    forks = SessionForks.start(environment) if can_fork() else None
    try:
        asyncio.run(_main(environment, forks, arguments, listening))
    except PortTaken as error:
        print(error, file=sys.stderr)
        sys.exit(_USAGE)
    finally:
        if forks is not None:
            forks.stop()


def main() -> None:
    """Entry point."""
    arguments = _arguments()
    try:
        environment = load_environment(arguments.path, arguments.name)
    except Exception as error:
        sys.exit(why_not_loaded(error))
    run(environment, arguments)


if __name__ == "__main__":
    main()
