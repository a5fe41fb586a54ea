"""Reading an engine's replies: usage, weight versions, token ids that clients look for in two places."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from engine_client import version_of_label
from model_gateway.domain.calls import ApiRoute, CompletionCall, ModelTarget
from model_gateway.domain.routing import EngineRoute, served_name

MAX_TOKENS: Final = 2**31 - 1
"""Of one request; what is beyond was not counted but made up."""
_NO_FINGERPRINT: Final = b'"system_fingerprint":null'


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


def usage_of(reply: Mapping[str, Any]) -> TokenUsage | None:
    """The usage of a reply or of a chunk; None where it says none, or numbers that no answer can have."""
    usage = reply.get("usage")
    if not isinstance(usage, Mapping):
        return None
    prompt, completion = (_number_of(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    return None if prompt is None or completion is None else TokenUsage(prompt, completion)


def _number_of(tokens: Any) -> int | None:
    if tokens is None:
        return 0
    is_number = isinstance(tokens, int | float) and not isinstance(tokens, bool)
    return int(tokens) if is_number and 0 <= tokens <= MAX_TOKENS else None


def counted_usage(call: CompletionCall, reply: Mapping[str, Any]) -> TokenUsage:
    """The usage that a reply says, or where it says none (vLLM's token route) that of the ids in it."""
    if (said := usage_of(reply)) is not None:
        return said
    prompt = call.body.get("token_ids") if call.route is ApiRoute.GENERATE else None
    if not isinstance(prompt, list):
        return TokenUsage()
    return TokenUsage(len(prompt), sum(len(choice.get("token_ids") or ()) for choice in choices_of(reply)))


def versions_in(reply: Mapping[str, Any]) -> list[int]:
    """Versions in a reply's or chunk's spans, in order; empty where the engine says nothing."""
    found = []
    for choice in choices_of(reply):
        for span in choice.get("weight_versions") or ():
            version = version_in(span)
            if version is not None:
                found.append(version)
    return found


def version_in(span: Mapping[str, Any]) -> int | None:
    """The version that a span names, proven or not yet; None where its label names none."""
    return version_of_label(str(span.get("version", "")))[0]


def finish_reasons(reply: Mapping[str, Any]) -> list[str]:
    """Of the choices that are finished."""
    return [str(choice["finish_reason"]) for choice in choices_of(reply) if choice.get("finish_reason")]


def with_ids_in_both_places(reply: dict[str, Any]) -> bool:
    """Copies prompt_token_ids between the top level and the choices; True when something was missing."""
    choices = list(choices_of(reply))
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


def with_fingerprint(body: bytes, checkpoint: str) -> bytes:
    """A reply, or whole events, that say null for `system_fingerprint`: the checkpoint that answered. In a
    text of JSON the quotes of such a field are escaped, so what was sampled stays as it is."""
    return body.replace(_NO_FINGERPRINT, b'"system_fingerprint":"%b"' % checkpoint.encode())


def names_version(call: CompletionCall, reply: dict[str, Any]) -> bool:
    """Puts the version that a call is pinned to into `model`, whatever name its engine serves it by; True
    when it was another one. What follows head is answered by the name of the model."""
    if call.target.version is None or reply.get("model") in (None, str(call.target)):
        return False
    reply["model"] = str(call.target)
    return True


def pinned_version(engine: EngineRoute, target: ModelTarget) -> int | None:
    """The version that a pinned name names; None where the engine's channel decides."""
    name = served_name(engine, target)
    return target.version if name is not None and name != target.model else None


def choices_of(reply: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The choices of a reply or of a chunk."""
    choices = reply.get("choices")
    return (choice for choice in choices if isinstance(choice, dict)) if isinstance(choices, list) else ()
