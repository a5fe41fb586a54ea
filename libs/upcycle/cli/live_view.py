"""What a command shows while it runs: a frame that redraws itself in a terminal, else lines at a bounded
rate. Text of others loses its control characters here.
"""

import asyncio
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from upcycle.cli.terminal_text import terminal_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

LINES_EVERY_S: Final = 2.0
"""At most one line of progress in so many seconds, where there is no terminal."""
_FRAMES_PER_S: Final = 4
_BAR_COLUMNS: Final = 40


def redraws(console: "Console") -> bool:
    """Whether a frame can redraw itself: on a terminal that moves its cursor, and in no file for which
    colours are forced."""
    is_file = "FORCE_COLOR" in os.environ and not console.file.isatty()
    return console.is_interactive and not is_file


def live(console: "Console") -> "Live":
    """A frame whose last state stays. What programs read on standard output goes past it."""
    from rich.live import Live

    return Live(
        console=console,
        refresh_per_second=_FRAMES_PER_S,
        transient=False,
        redirect_stdout=sys.stdout.isatty(),
        vertical_overflow="crop",
    )


def one_row(text: str) -> str:
    """Text of others on one row: no control characters, no line ends."""
    return terminal_text(text).replace("\n", " ").replace("\t", " ")


def row(text: str, style: str = "") -> "Text":
    """The same for a frame: it is cut where the terminal ends, and never wrapped."""
    from rich.text import Text

    return Text(one_row(text), style=style, no_wrap=True, overflow="ellipsis")


def bar(done: int, total: int, width: int) -> "RenderableType":
    """How much of a fixed number is done."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    grid = Table.grid()  # the bar alone would not end its row
    grid.add_row(ProgressBar(max(1, total), min(done, total), min(_BAR_COLUMNS, width)))
    return grid


class PolledLines:
    """As BoundedLines, for work that keeps the event loop busy: a line that comes too early waits for a later
    call, not for a timer. begins_at_once: the first one does not come too early."""

    def __init__(self, console: "Console", *, begins_at_once: bool = True) -> None:
        self._console = console
        self._printed_s = -math.inf if begins_at_once else time.monotonic()
        self._waiting = ""

    def show(self, text: str) -> None:
        """Print it, unless the last one was printed less than LINES_EVERY_S ago."""
        self._waiting = text
        if time.monotonic() - self._printed_s >= LINES_EVERY_S:
            self._printed_s = time.monotonic()
            self.close()

    def close(self) -> None:
        """Print what still waits."""
        if self._waiting:
            self._console.print(one_row(self._waiting), style="dim", markup=False, soft_wrap=True)
        self._waiting = ""


class BoundedLines:
    """Prints a line where it says something new: at most one in `every_s` seconds, the newest last. It needs
    a running event loop."""

    def __init__(self, console: "Console", every_s: float | None = None) -> None:
        self._console = console
        self._every_s = LINES_EVERY_S if every_s is None else every_s
        self._shown = ""
        self._next: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def show(self, text: str) -> None:
        """Print it now, or when `every_s` have passed since the last one."""
        if self._timer is not None:
            self._next = text
        elif text != self._shown:
            self._print(text)
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._again)

    def flush(self) -> None:
        """Print what still waits, before another line that is not to overtake it."""
        waiting, self._next = self._next, None
        if waiting is not None and waiting != self._shown:
            self._print(waiting)

    def close(self) -> None:
        """Print what still waits."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.flush()

    def _again(self) -> None:
        waiting, self._timer, self._next = self._next, None, None
        if waiting is not None:
            self.show(waiting)

    def _print(self, text: str) -> None:
        self._shown = text
        self._console.print(one_row(text), markup=False, soft_wrap=True)
