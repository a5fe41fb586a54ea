"""Text of agents, tools and servers on its way to a terminal: control characters stay out of it."""

from typing import Final

from upcycle.printable import printable
from upcycle.wording import amount

MAX_SHOWN_CHARS: Final = 4000


def terminal_text(text: str, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """`text` with a replacement character for each that could move the cursor or colour what follows, and cut
    after `max_chars`."""
    more = len(text) - max_chars
    shown = printable(text[:max_chars])
    return f"{shown}\n[{amount(more, 'more character')}]" if more > 0 else shown
