"""What a chat reply holds, in one shape for both engines, whole or as chunks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_gateway.domain.errors import BadReply


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as far as the engine counts them."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0


def usage_in(reply: Mapping[str, Any]) -> Usage | None:
    """Of a reply or of a chunk that has it."""
    said = reply.get("usage")
    if not isinstance(said, Mapping):
        return None
    prompt, completion = said.get("prompt_tokens_details") or {}, said.get("completion_tokens_details") or {}
    return Usage(
        int(said.get("prompt_tokens") or 0),
        int(said.get("completion_tokens") or 0),
        int(prompt.get("cached_tokens") or 0),
        int(completion.get("reasoning_tokens") or 0),
    )


def only_choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice. Raises BadReply."""
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        raise BadReply("the engine's answer has no choices")
    return choices[0]


def reasoning_in(message: Mapping[str, Any]) -> str:
    """The text that the policy thought, which vLLM has had under two names."""
    return str(message.get("reasoning") or message.get("reasoning_content") or "")


def calls_in(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Tool calls of a message or of a delta."""
    return [call for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
