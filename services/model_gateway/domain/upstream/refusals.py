"""A provider's own errors in the one envelope: the provider named, its key never shown."""

from collections.abc import Mapping
from typing import Any, Final

from model_gateway.domain.errors import GatewayError
from model_gateway.domain.upstream.errors import (
    UpstreamBusy,
    UpstreamFailed,
    UpstreamRefused,
    UpstreamRefusesUs,
)
from model_gateway.domain.upstream.providers import Provider

RETRYABLE: Final = frozenset({408, 429, 500, 502, 503, 504, 529})
_HIDDEN: Final = "[key]"
_SHOWN_CHARS: Final = 300
_READ_BYTES: Final = 1 << 14
"""Of which they are shown; a key is shorter."""
_OPERATOR: Final = frozenset({401, 402, 403, 404})
_OURS: Final = frozenset({400, 413, 422})
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


def without_key(text: str, provider: Provider) -> str:
    """One line of what it said."""
    shown = text.replace(provider.key, _HIDDEN) if provider.key else text
    return " ".join(shown.split())[:_SHOWN_CHARS]


def shown_of(body: bytes, provider: Provider) -> str:
    """The beginning of what it sent. The key may stand where it is cut."""
    text = body[:_READ_BYTES].decode(errors="replace")
    if provider.key:
        text = text.replace(provider.key, _HIDDEN)
        if len(body) > _READ_BYTES:
            text = text[: -len(provider.key)]
    return without_key(text, provider)


def unreadable(what: str, error: Exception, body: bytes, provider: Provider) -> str:
    """The message about an answer, or an event, that cannot be read."""
    why = without_key(str(error), provider)
    return f"provider {provider.name!r} sent {what} that cannot be read ({why}): {shown_of(body, provider)!r}"


def is_failure(status: int) -> bool:
    """Whether an answer of this status says that the provider is broken, rather than busy or right."""
    return status >= _SERVER_ERROR or status == 408


def refusal_of(
    provider: Provider, status: int, said: Any, params: Mapping[str, str], retry_after_s: float | None = None
) -> GatewayError:
    """`said`: the parsed body; `params`: the names that the client's dialect has for fields of the call."""
    message, param = _message_in(said)
    shown = without_key(message, provider)
    start = f"provider {provider.name!r} answered {status}"
    if status in _OPERATOR:
        # Its text is about our account and may hold a part of the key.
        return UpstreamRefusesUs(f"{start}: its key or its settings at this gateway have to be looked at")
    if status == _TOO_MANY:
        return UpstreamBusy(f"{start}: {shown or 'too many requests'}", retry_after_s=retry_after_s or 1.0)
    if status in _OURS:
        name = params.get(param, without_key(param, provider)) if param else None
        return UpstreamRefused(
            f"provider {provider.name!r} refused the request: {shown or status}", param=name
        )
    return UpstreamFailed(f"{start}{f': {shown}' if shown else ''}")


def _message_in(said: Any) -> tuple[str, str]:
    """Message and field of OpenAI's or Anthropic's envelope, or of a server's own."""
    inner = said.get("error", said) if isinstance(said, Mapping) else said
    if isinstance(inner, Mapping):
        message = inner.get("message") or inner.get("detail") or ""
        return str(message), str(inner.get("param") or "")
    return (inner, "") if isinstance(inner, str) else ("", "")
