"""A console to which no text can send control characters, also not that of an agent or a tool."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from upcycle.printable import printable


class TextConsole(Console):
    """Only what rich itself sends moves the cursor or has a colour."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """As Console does; control characters in a text are replaced."""
        for one in super().render(renderable, options):
            if one.control is None and (shown := printable(one.text)) != one.text:
                yield Segment(shown, one.style)
            else:
                yield one
