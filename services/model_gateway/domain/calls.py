"""Reading a completion request: known fields, limits, and which weights it asks for."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from identities.entities import SLUG, checkpoint_id, parse_checkpoint_id
from model_gateway.domain.errors import BadRequest, UnknownField
from model_gateway.domain.fields import CHAT_FIELDS, COMPLETIONS_FIELDS


class ApiRoute(StrEnum):
    """What is asked for; the value is the path on the engine."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


FIELDS: Mapping[ApiRoute, frozenset[str]] = {
    ApiRoute.CHAT: CHAT_FIELDS,
    ApiRoute.COMPLETIONS: COMPLETIONS_FIELDS,
}

MAX_DEPTH = 64
"""Of arrays and objects within one field of a request."""
_PINNED = re.compile(r"v(0|[1-9]\d{0,17})")


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """Which weights: a model at its head, or at one version."""

    model: str
    version: int | None = None

    def __str__(self) -> str:
        return self.model if self.version is None else f"{self.model}@v{self.version}"


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What one request may ask for."""

    max_n: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """A checked request. `raw` is the body as it came, `body` the same, parsed once."""

    route: ApiRoute
    target: ModelTarget
    raw: bytes
    body: Mapping[str, Any]
    stream: bool
    wants_usage: bool  # as a last chunk of the stream
    return_token_ids: bool

    def outbound(self, served_name: str) -> Mapping[str, Any] | None:
        """The body to send to an engine that serves the target as `served_name`; None: `raw` will do."""
        changes: dict[str, Any] = {}
        if self.body["model"] != served_name:
            changes["model"] = served_name
        if self.stream and not self.wants_usage:
            options = self.body.get("stream_options") or {}
            changes["stream_options"] = {**options, "include_usage": True}
        if not changes and "checkpoint" not in self.body:
            return None
        return {key: value for key, value in {**self.body, **changes}.items() if key != "checkpoint"}


def read_call(route: ApiRoute, raw: bytes, body: Any, limits: CallLimits) -> CompletionCall:
    """Raises BadRequest, UnknownField."""
    if not isinstance(body, dict):
        raise BadRequest(f"the body is a JSON {type(body).__name__}, expected an object")
    _check_fields(route, body)
    _check_limits(body, limits)
    _check_depth(raw, body)
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest("stream_options must be an object", param="stream_options")
    return CompletionCall(
        route=route,
        target=read_target(body.get("model"), body.get("checkpoint")),
        raw=raw,
        body=body,
        stream=stream,
        wants_usage=bool((options or {}).get("include_usage")),
        return_token_ids=_flag(body, "return_token_ids"),
    )


def read_target(model: Any, checkpoint: Any = None) -> ModelTarget:
    """`incident`, `incident@head`, `incident@v12`; a checkpoint id beside the slug pins too."""
    slug, _, at = model.partition("@") if isinstance(model, str) else ("", "", "")
    if not SLUG.fullmatch(slug):
        raise BadRequest(f"model {model!r:.80}: it must name a model, e.g. `incident@v12`", param="model")
    pinned = _PINNED.fullmatch(at)
    if at and at != "head" and pinned is None:
        raise BadRequest(f"model {model!r}: after '@' comes `head` or `v<number>`", param="model")
    if checkpoint is None:
        return ModelTarget(slug, int(pinned[1]) if pinned else None)
    found = parse_checkpoint_id(str(checkpoint))
    if found is None or found.model != slug:
        raise BadRequest(
            f"checkpoint {checkpoint!r} is not one of {slug!r}; expected e.g. {checkpoint_id(slug, 1)}",
            param="checkpoint",
        )
    return ModelTarget(slug, found.version)


def _check_fields(route: ApiRoute, body: Mapping[str, Any]) -> None:
    unknown = body.keys() - FIELDS[route]
    if not unknown:
        return
    name = min(unknown)
    nearest = difflib.get_close_matches(name, FIELDS[route], n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise UnknownField(f"unknown field {name!r} for {route.value}{hint}", param=name)


def _check_limits(body: Mapping[str, Any], limits: CallLimits) -> None:
    most_of = {
        "n": limits.max_n,
        "best_of": limits.max_n,
        "max_tokens": limits.max_tokens,
        "max_completion_tokens": limits.max_tokens,
    }
    for name, most in most_of.items():
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadRequest(f"{name} is {value!r}, expected an integer from 1 to {most}", param=name)


def _check_depth(raw: bytes, body: Mapping[str, Any]) -> None:
    """Engines fail on what nests deeper, some of them with an error of their own."""
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    for name, value in body.items():
        level = [value]
        for _ in range(MAX_DEPTH):
            level = [part for one in level for part in _parts(one)]
            if not level:
                break
        else:
            raise BadRequest(f"{name} nests deeper than {MAX_DEPTH} levels", param=name)


def _parts(value: Any) -> Iterable[Any]:
    """The objects and arrays in an object or an array."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [part for part in inner if isinstance(part, dict | list)]


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} is {value!r}, expected true or false", param=name)
    return bool(value)
