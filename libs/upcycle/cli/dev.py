"""`upcycle dev`."""

import asyncio
import signal
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from upcycle.cli.terminal_text import terminal_text
from upcycle.errors import UnknownName

if TYPE_CHECKING:
    from upcycle.developing.versions import DevSource

PORT = 8765
_SHOWN: Final = 5
Watch = Annotated[tuple[Path, ...], Parameter(name=["--watch", "-w"])]


def dev(source: str, /, *, watch: Watch = (), port: int = PORT) -> None:
    """Serve an environment over MCP while you write it; it is loaded again when a file of it changes.

    An MCP client calls its tools, and plays its scenarios with dev_start and dev_grade. A version
    that does not load is shown with its error, and the last one that did is served on.

    :param source: the file that declares it, env.py; of several FILE:NAME; as a module env:env.
    :param watch: another file or folder to watch; repeat it. The environment's own source always is.
    :param port: of this machine; 0 lets the system choose.
    """
    from upcycle.developing.serving import develop  # seconds: Ctrl-C meanwhile has nothing to clean up
    from upcycle.developing.watching import Watcher

    chosen = chosen_source(source)
    watcher = Watcher(chosen.path, watch)

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await develop(chosen, watcher, port, _say, stop)

    asyncio.run(serve())


def chosen_source(text: str) -> "DevSource":
    """`env.py`, `env.py:env` or `env:env`. Raises UnknownName."""
    from upcycle.developing.versions import DevSource

    path, _, attribute = text.partition(":")
    parts = [part for part in path.split(".") if part]
    is_file_name = path.endswith(".py") or not parts
    file = Path(path) if is_file_name else Path(*parts).with_suffix(".py")
    if not file.is_file():
        raise UnknownName(*_not_there(Path(path), file))
    return DevSource(file, attribute or None)


def _not_there(given: Path, file: Path) -> tuple[str, str]:
    """What is wrong with a name, and the files that may be meant."""
    folder = given if given.is_dir() else file.parent
    beside = sorted(one.name for one in folder.glob("*.py")) if folder.is_dir() else []
    near = get_close_matches(file.name, beside, n=1)
    has = f": {', '.join(beside[:_SHOWN])}" if beside else ""
    hint = f"did you mean {near[0]}?" if near else f"give the Python file that declares the environment{has}"
    if given.is_dir():
        return f"{given} is a folder", hint
    if given.is_file():
        return f"{given} is no Python file", hint
    return f"no such file: {file}", hint


def _say(text: str) -> None:
    sys.stderr.write("\n".join(map(terminal_text, text.splitlines())) + "\n")
    sys.stderr.flush()
