"""An engine's refusal in our envelope: its message, OpenAI's codes, the field as the client named it."""

from collections.abc import Mapping
from typing import Any, Final

from model_gateway.domain.errors import EngineRefused

_NOT_FOUND: Final = 404
# vLLM says this in words only; clients (verifiers, LiteLLM) match on the same words.
_TOO_LONG: Final = "maximum context length"
_TOO_LONG_CODE: Final = "context_length_exceeded"
_KINDS: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_INVALID: Final = "invalid_value"
_NO_MODEL: Final = "model_not_found"
_NO_ROUTE: Final = "not_served_by_engine"
_CODES: Final = {401: "engine_refused", 403: "engine_refused", 429: "rate_limit_exceeded"}


CODES: Final = frozenset({*_CODES.values(), _TOO_LONG_CODE, _INVALID, _NO_MODEL, _NO_ROUTE})
"""Every code that a refusal may have."""


def refusal_of(status: int, said: Any, route: str, params: Mapping[str, str]) -> EngineRefused:
    """`said`: the parsed body, vLLM's envelope or FastAPI's `detail`; `params`: a dialect's own names."""
    inner = said.get("error", said) if isinstance(said, Mapping) else None
    found: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    param = str(found["param"]).removeprefix("body.") if found.get("param") else None
    message = found.get("message")
    if message is None and status == _NOT_FOUND:
        message = f"the engine that serves this model has no route {route}"
    code = _CODES.get(status, _INVALID)
    if status == _NOT_FOUND:
        code = _NO_MODEL if param == "model" else _NO_ROUTE
    if _TOO_LONG in str(message):
        code, param = _TOO_LONG_CODE, "messages"
    error = EngineRefused(
        str(message or f"the engine refused the request with status {status}"),
        status=status,
        code=code,
        param=params.get(param, param) if param else None,
    )
    error.kind = _KINDS.get(status, error.kind)
    return error
