"""The JSON of a request's body, refused where it could break what reads it."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from model_gateway.domain.errors import BadRequest

MAX_DEPTH = 64
"""Of arrays and objects within one field of a request."""


def parsed(raw: bytes) -> Any:
    """Raises BadRequest. Before anything else looks at a value: what nests deeper cannot even be shown in a
    refusal, and engines fail on it, some of them with an error of their own."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if isinstance(body, dict):
        _check_depth(raw, body)
    return body


def _check_depth(raw: bytes, body: Mapping[str, Any]) -> None:
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    for name, value in body.items():
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [part for one in level for part in _parts(one)]
            if not level:
                break
        else:
            raise BadRequest(f"{name:.80} nests deeper than {MAX_DEPTH} levels", param=f"{name:.80}")


def _parts(value: Any) -> Iterable[Any]:
    """The objects and arrays in an object or an array."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in inner if isinstance(part, dict | list)]
