"""Tokens and money where a provider tells no number, or not yet."""

from collections.abc import Mapping
from typing import Any, Final

from model_gateway.domain.calls import CompletionCall
from model_gateway.domain.replies import TokenUsage, choices_of
from model_gateway.domain.upstream.providers import UpstreamModel

_CHARS_PER_TOKEN: Final = 4


def characters_of(reply: Mapping[str, Any]) -> int:
    """Of the answers in a reply or a chunk, calls of tools and thoughts included."""
    total = 0
    for choice in choices_of(reply):
        said = choice.get("delta") or choice.get("message") or choice
        for name in ("content", "text", "reasoning", "reasoning_content"):
            value = said.get(name)
            total += len(value) if isinstance(value, str) else 0
        for call in said.get("tool_calls") or ():
            total += len(str((call.get("function") or {}).get("arguments") or ""))
    return total


def estimated(call: CompletionCall, characters: int) -> TokenUsage:
    """For an answer that says no usage, or that its client did not wait for: four characters a token."""
    return TokenUsage(-(-len(call.raw) // _CHARS_PER_TOKEN), -(-characters // _CHARS_PER_TOKEN))


def most_cost(call: CompletionCall, model: UpstreamModel) -> float:
    """What the answer may cost, as far as the request says."""
    named = call.body.get("max_completion_tokens") or call.body.get("max_tokens") or model.max_tokens
    answers = max(int(call.body.get(name) or 1) for name in ("n", "best_of"))
    return model.price.of(estimated(call, 0).prompt_tokens, int(named) * answers)
