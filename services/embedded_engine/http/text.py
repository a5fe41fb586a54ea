"""Tokens as text: whole outputs, single tokens, and the growing text of a stream."""

import functools
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from chat_format import ChatFormat

_REPLACEMENT = "\ufffd"


class Text:
    """Tokenizer and chat format of one policy directory."""

    def __init__(self, directory: Path) -> None:
        self.chat = ChatFormat.load(directory)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.token_text = functools.lru_cache(maxsize=None)(self._token_text)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special))

    def single_token(self, text: str) -> int | None:
        """The id of a text that is one token."""
        found = self.encode(text)
        return found[0] if len(found) == 1 else None

    def as_json(self) -> str:
        """The tokenizer, as its file has it."""
        return str(self._tokenizer.to_str())

    def token_name(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token."""
        return self._tokenizer.id_to_token(token_id) or ""

    def _token_text(self, token_id: int) -> str:
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))


class GrowingText:
    """Turns growing token ids into text deltas that never split a character."""

    def __init__(self, text: Text, *, skip_special: bool) -> None:
        self._text = text
        self._skip_special = skip_special
        self._start = 0
        self._shown = 0

    def delta(self, token_ids: Sequence[int], *, final: bool) -> str:
        """The text that `token_ids` (all so far) add to what was returned before."""
        before = self._text.decode(token_ids[self._start : self._shown], skip_special=self._skip_special)
        now = self._text.decode(token_ids[self._start :], skip_special=self._skip_special)
        if not final and (now.endswith(_REPLACEMENT) or len(now) <= len(before)):
            return ""
        self._start, self._shown = self._shown, len(token_ids)
        return now[len(before) :]
