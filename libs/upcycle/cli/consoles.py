"""A console to which no text can send control characters, also not that of an agent or a tool."""

from collections.abc import Iterator
from typing import Any, Final, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from upcycle.printable import printable

_WIDEST: Final = 100_000


class TextConsole(Console):
    """Only what rich itself sends moves the cursor or has a colour."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """As Console does; control characters in a text are replaced."""
        for one in super().render(renderable, options):
            if one.control is None and (shown := printable(one.text)) != one.text:
                yield Segment(shown, one.style)
            else:
                yield one


class PipedConsole(TextConsole):
    """For what another program reads: a row of a table is one line, however long. columns: of all else."""

    def __init__(self, columns: int, file: TextIO | None = None) -> None:
        super().__init__(file=file, highlight=False, width=_WIDEST)
        self._columns = columns

    def print(self, *objects: Any, **options: Any) -> None:
        """As Console does."""
        if not any(isinstance(one, Table) for one in objects):
            options.setdefault("width", self._columns)
        super().print(*objects, **options)
