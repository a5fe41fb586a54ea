"""Standard output of a command, without control characters in the texts of others: also where a line of the
command forgot that an agent, a tool or another user wrote one.
"""

import io
import sys
from typing import Final, TextIO

from upcycle.printable import printable

_UNFILTERED: Final[dict[int, TextIO]] = {}
"""Of a stream that is filtered, by its id, the one that it took the place of."""


class PlainText(io.TextIOWrapper):
    """Replaces what could move the cursor, colour what follows, or speak to the terminal."""

    def write(self, text: str, /) -> int:
        """As TextIOWrapper does; returns the characters that it was given."""
        super().write(printable(text))
        return len(text)


def keep_plain() -> None:
    """From now on `print` is filtered. A console of rich, which sends its own colours, filters the texts in
    them (`consoles.TextConsole`) and writes to `unfiltered`."""
    before = sys.stdout
    if not isinstance(before, io.TextIOWrapper) or isinstance(before, PlainText):
        return  # a test took its place, or there is none
    before.flush()
    # Written through, so that what both streams have is in one order.
    plain = PlainText(
        before.buffer,
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=True,
    )
    _UNFILTERED[id(plain)] = before
    sys.stdout = plain


def unfiltered(stream: TextIO) -> TextIO:
    """For data that is read by a program, and for consoles that filter by themselves."""
    behind = getattr(stream, "rich_proxied_file", stream)  # while a live view has taken its place
    return _UNFILTERED.get(id(behind), behind)
