"""Text of agents, tools and servers on its way to a terminal: control characters stay out of it."""

import re
from typing import Final

MAX_SHOWN_CHARS: Final = 4000

# C0 but newline and tab, delete, C1, halves of characters, and what turns the direction of writing round.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


def terminal_text(text: str, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """`text` with a replacement character for each that could move the cursor or colour what follows, and cut
    after `max_chars`."""
    more = len(text) - max_chars
    shown = _CONTROL.sub("\ufffd", text[:max_chars].replace("\r\n", "\n"))
    return f"{shown}\n[{more} more characters]" if more > 0 else shown
