"""Cuts secrets out of text that a person or a log store will read."""

import re
from collections.abc import Iterable
from typing import Final

_MASK: Final = "***"
_MIN_SECRET_CHARS: Final = 6
_LABELLED: Final = re.compile(
    r"(?i)(bearer\s+|api[_-]?key[\"'=:\s]+|password[\"'=:\s]+|secret[_-]?key[\"'=:\s]+)([^\s\"',}]+)"
)
_ISSUED_KEY: Final = re.compile(r"\bupk_[a-z0-9]+_[A-Za-z0-9_-]+")
_IN_URL: Final = re.compile(r"(://[^\s/:@\"']*:)([^\s@\"']+)(?=@)")


class Redactor:
    """Replaces known secret values, and what looks like one, by ***."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Values shorter than 6 characters are not searched for: they would blank out ordinary words."""
        known = sorted({s for s in secrets if len(s) >= _MIN_SECRET_CHARS}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(_MASK, text)
        text = _ISSUED_KEY.sub(_MASK, text)
        return _IN_URL.sub(rf"\g<1>{_MASK}", _LABELLED.sub(rf"\g<1>{_MASK}", text))
