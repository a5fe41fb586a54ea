"""llguidance's objects, made with our limits. llguidance is imported when the first one is made."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_MAX_LEXER_STATES: Final = 25_000  # about 2 kB each, for every running sequence


def tokenizer_of(tokenizer_json: str, vocab: int, stop_token_ids: Sequence[int]) -> "LLTokenizer":
    """Raises what llguidance's parts raise."""
    import llguidance

    return llguidance.LLTokenizer(tokenizer_json, n_vocab=vocab, eos_token=list(stop_token_ids))


def matcher_of(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """Never raises for what a client sent: see `is_error`."""
    import llguidance

    limits = llguidance.LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    return llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
