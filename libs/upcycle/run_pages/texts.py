"""How much of what an episode wrote stands on a page, and in which form."""

import math
from typing import Any, Final

from markupsafe import Markup, escape

from upcycle.printable import cut, printable

MAX_TEXT_CHARS: Final = 8_000
"""Of one text: a message, the result of a call, a traceback."""
MAX_NAME_CHARS: Final = 160
"""Of what stands in a cell or a heading."""
MAX_EPISODE_CHARS: Final = 200_000
"""Of one episode, as HTML."""
TOKEN_CHARS: Final = 48
"""Of the markup around one token."""


def shown(value: Any) -> Any:
    """What Jinja is to escape: markup of our own templates as it is, text without control characters and
    cut. It stands behind every `{{ … }}`."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(cut(value, MAX_TEXT_CHARS))


def kept(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """What a reader of episodes keeps of a text: no more than is shown."""
    return cut(text, max_chars)


def name(text: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """One line, for a cell or a heading."""
    flat = " ".join(printable(text[: 4 * max_chars]).split())
    return flat if len(flat) <= max_chars else f"{flat[: max_chars - 1]}…"


def finite(value: float | None, form: str = ".3f") -> str:
    """A number; – where there is none."""
    return "–" if value is None else format(value, form) if math.isfinite(value) else str(value)


class Space:
    """What is left of an episode's place on the page. Templates spend it in the order of what they show."""

    def __init__(self, max_chars: int = MAX_EPISODE_CHARS) -> None:
        self.left = max_chars

    def take(self, text: str, max_chars: int = MAX_TEXT_CHARS) -> Markup:
        """The text, escaped, as far as there is place for it."""
        fits = printable(cut(text, max_chars))
        if len(found := escape(fits)) > self.left:
            found = escape(printable(cut(text, min(max_chars, max(0, self.left // 6)))))
        self.left -= len(found)
        return found

    def takes_token(self, text: str) -> bool:
        """Whether one more token fits; then its place is taken."""
        size = TOKEN_CHARS + len(escape(shown(text)))
        if size > self.left:
            return False
        self.left -= size
        return True
