"""Reading an engine's replies: usage, weight versions, token ids that clients look for in two places."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.routing import EngineRoute, served_name


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


def usage_of(reply: Mapping[str, Any]) -> TokenUsage | None:
    """The usage of a reply or of a chunk."""
    usage = reply.get("usage")
    if not isinstance(usage, Mapping):
        return None
    return TokenUsage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))


def versions_in(reply: Mapping[str, Any]) -> list[int]:
    """Versions in a reply's or chunk's spans, in order; empty where the engine says nothing."""
    found = []
    for choice in _choices(reply):
        for span in choice.get("weight_versions") or ():
            label = str(span.get("version", "")).removeprefix("unproven-")
            if label.isdecimal():
                found.append(int(label))
    return found


def finish_reasons(reply: Mapping[str, Any]) -> list[str]:
    """Of the choices that are finished."""
    return [str(choice["finish_reason"]) for choice in _choices(reply) if choice.get("finish_reason")]


def with_ids_in_both_places(reply: dict[str, Any]) -> bool:
    """Copies prompt_token_ids between the top level and the choices; True when something was missing."""
    choices = list(_choices(reply))
    top = reply.get("prompt_token_ids")
    inner = next((c["prompt_token_ids"] for c in choices if c.get("prompt_token_ids") is not None), None)
    ids = top if top is not None else inner
    if ids is None:
        return False
    changed = top is None
    reply["prompt_token_ids"] = ids
    for choice in choices:
        if choice.get("prompt_token_ids") is None:
            choice["prompt_token_ids"] = ids
            changed = True
    return changed


def pinned_version(engine: EngineRoute, target: ModelTarget) -> int | None:
    """The version that a pinned name names; None where the engine's channel decides."""
    name = served_name(engine, target)
    return target.version if name is not None and name != target.model else None


def _choices(reply: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    choices = reply.get("choices")
    return (choice for choice in choices if isinstance(choice, dict)) if isinstance(choices, list) else ()
