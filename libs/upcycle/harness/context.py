"""What becomes of a context that is full: the episode stops, or older observations give way to stubs.

Compression is that of WebAgent-R1 (M-GRPO): all actions stay, and what tools said before the last turn is
replaced. A context that was compressed is a new one; the recorder of the episode says so, and its tokens
before the next turn are a prompt.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from upcycle.images import images_in, text_of_content

STOP: Final = "stop"
COMPRESS: Final = "compress"
POLICIES: Final = (STOP, COMPRESS)
STUB: Final = "[an earlier result of {chars} characters was left out]"
"""In the place of an observation."""
_SHORT: Final = 80
"""Results of at most so many characters stay, and so do stubs."""


def compressed(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The messages with a stub for each longer result of a tool before the last assistant turn; None where
    there is no such result, and so nothing to win."""
    last = max((at for at, one in enumerate(messages) if one["role"] == "assistant"), default=0)
    shorter = [_stubbed(one) if at < last else dict(one) for at, one in enumerate(messages)]
    return None if shorter == [dict(one) for one in messages] else shorter


def _stubbed(message: Mapping[str, Any]) -> dict[str, Any]:
    """A picture counts however short its text is: it takes as many tokens as a page."""
    if message["role"] != "tool":
        return dict(message)
    content = message.get("content")
    text, images = text_of_content(content), images_in(content)
    if len(text) <= _SHORT and not images:
        return dict(message)
    return {**message, "content": STUB.format(chars=len(text))}
