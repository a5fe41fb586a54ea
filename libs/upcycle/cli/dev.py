"""`upcycle dev`."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from upcycle.cli.terminal_text import terminal_text
from upcycle.errors import UnknownName

if TYPE_CHECKING:
    from upcycle.developing.versions import DevSource
    from upcycle.developing.watching import Watcher

PORT = 8765
Watch = Annotated[tuple[Path, ...], Parameter(name=["--watch", "-w"])]


def dev(source: str, /, *, watch: Watch = (), port: int = PORT) -> None:
    """Serve an environment over MCP while you write it; it is loaded again when a file of it changes.

    An MCP client calls its tools, and plays its scenarios with dev_start and dev_grade. A version
    that does not load is shown with its error, and the last one that did is served on.

    :param source: the file that declares it, env.py; of several FILE:NAME; as a module env:env.
    :param watch: another file or folder to watch; repeat it. The environment's own source always is.
    :param port: of this machine; 0 lets the system choose.
    """
    from upcycle.developing.watching import Watcher

    chosen = chosen_source(source)
    asyncio.run(_serve(chosen, Watcher(chosen.path, watch), port))


def chosen_source(text: str) -> "DevSource":
    """`env.py`, `env.py:env` or `env:env`. Raises UnknownName."""
    from upcycle.developing.versions import DevSource

    path, _, attribute = text.partition(":")
    file = Path(path) if path.endswith(".py") else Path(*path.split(".")).with_suffix(".py")
    if not file.is_file():
        raise UnknownName(f"no such file: {file}", "give the Python file that declares the environment")
    return DevSource(file, attribute or None)


async def _serve(source: "DevSource", watcher: "Watcher", port: int) -> None:
    from upcycle.developing.serving import develop

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await develop(source, watcher, port, _say, stop)


def _say(text: str) -> None:
    sys.stderr.write("\n".join(map(terminal_text, text.splitlines())) + "\n")
    sys.stderr.flush()
