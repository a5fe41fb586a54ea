"""Completions' `logprobs`, and `echo`, which puts the prompt before the answer in both text and list."""

from collections.abc import Callable, Iterable
from typing import Any

from embedded_engine.http.bodies import CompletionBody
from embedded_engine.http.serving import Served
from embedded_engine.sequences import Sequence


def echoed_text(body: CompletionBody, served: Served, sequence: Sequence) -> str:
    """The prompt as text when `echo` is set: as it was sent, or decoded where ids were sent."""
    if not body.echo:
        return ""
    if isinstance(body.prompt, str):
        return body.prompt
    return served.text.decode(sequence.prompt, skip_special=False)


class TokenList:
    """OpenAI's four parallel lists of tokens, log-probabilities, likeliest tokens and offsets in the text."""

    def __init__(self, label: Callable[[int], str]) -> None:
        self._label = label
        self._position = 0
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def skip(self, tokens: Iterable[int]) -> None:
        """Tokens that are not listed, but lie before those that are."""
        self._position += sum(len(self._label(token)) for token in tokens)

    def add(self, token: int, logprob: float | None, likeliest: Iterable[tuple[int, float]]) -> None:
        """The next token; without a log-probability it is the first of all."""
        name = self._label(token)
        top: dict[str, float] = {} if logprob is None else {name: logprob}
        for other, value in likeliest:
            top.setdefault(self._label(other), value)
        self._tokens.append(name)
        self._logprobs.append(logprob)
        self._tops.append(None if logprob is None else top)
        self._offsets.append(self._position)
        self._position += len(name)

    def add_prompt(self, sequence: Sequence) -> None:
        """All tokens of the prompt."""
        self.add(sequence.prompt[0], None, ())
        for scored in sequence.prompt_logprobs:
            pairs = list(zip(scored.token_ids, scored.logprobs, strict=True))
            self.add(*pairs[0], pairs[1:])

    def as_dict(self) -> dict[str, Any]:
        """As it stands in a choice."""
        return {
            "text_offset": self._offsets,
            "token_logprobs": self._logprobs,
            "tokens": self._tokens,
            "top_logprobs": self._tops,
        }
