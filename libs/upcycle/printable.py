"""Text that others wrote, without what acts on where it is shown: control characters stay out of it."""

import re
from typing import Final

# C0 but newline and tab, delete, C1, halves of characters, and what turns the direction of writing round.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")

_BREAKS: Final = re.compile("[\t\n\u2028\u2029]")

_NOTE_CHARS: Final = 40


def printable(text: str) -> str:
    """`text` with a replacement character for each that could act, and plain line ends."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """`printable`, with one space in the place of all white space between two words."""
    return " ".join(printable(text).split())


def is_one_line(text: str) -> bool:
    """Whether it is printable and nothing in it begins a line or a column."""
    return printable(text) == text and not _BREAKS.search(text)


def cut(text: str, max_chars: int) -> str:
    """At most so many characters of it, then a line that says how many more there are. A text that is longer
    by no more than this line is left whole, so what was cut is not cut again."""
    more = len(text) - max_chars
    return f"{text[:max_chars]}\n[{more:,} more characters]" if more > _NOTE_CHARS else text
