"""Reading a completion request: known fields, limits, and which weights it asks for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from identities.entities import SLUG, checkpoint_id, parse_checkpoint_id
from model_gateway.domain import engine_fields as tables
from model_gateway.domain.chat_messages import check_messages, check_tools
from model_gateway.domain.errors import BadRequest, WrongType
from model_gateway.domain.fields import FieldTable, check_fields


class ApiRoute(StrEnum):
    """What an engine is asked for; the value is the path on the engine."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    CHAT_TOKENS = "/v1/chat/completions/tokens"
    GENERATE = "/inference/v1/generate"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"

    @property
    def samples(self) -> bool:
        """Whether the policy is asked for tokens."""
        return self not in (ApiRoute.TOKENIZE, ApiRoute.DETOKENIZE)


FIELDS: Mapping[ApiRoute, FieldTable] = {
    ApiRoute.CHAT: tables.CHAT_FIELDS,
    ApiRoute.COMPLETIONS: tables.COMPLETIONS_FIELDS,
    ApiRoute.CHAT_TOKENS: tables.CHAT_TOKENS_FIELDS,
    ApiRoute.GENERATE: tables.GENERATE_FIELDS,
    ApiRoute.TOKENIZE: tables.TOKENIZE_FIELDS,
    ApiRoute.DETOKENIZE: tables.DETOKENIZE_FIELDS,
}

VERSION_HEADER = "X-Upcycle-Version"
MAX_TOP_LOGPROBS = 20
"""OpenAI's own limit, and vLLM's unless it is started with another."""
_OF_STREAMS = ("stream", "stream_options")
_CHOICES = ("n", "best_of")
_LIMITED = (*_CHOICES, "max_tokens", "max_completion_tokens", "max_output_tokens")
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
    recorded: bool = (
        False  # the engine is asked for token ids and log-probabilities, whatever the client wants
    )
    canary: int | None = None  # the version that answers instead of head while an engine serves it
    shadow: int | None = None  # the version that is sent the request, too, once head has answered

    @property
    def is_of_canary(self) -> bool:
        """Whether its target is the version of a canary release, which the client did not ask for."""
        return self.canary is not None and self.target.version == self.canary

    @property
    def asks_for_logprobs(self) -> bool:
        """The client does."""
        asked = self.body.get("logprobs")
        return asked is not None if self.route is ApiRoute.COMPLETIONS else bool(asked)

    @property
    def may_be_recorded(self) -> bool:
        """Whether there is a conversation or a prompt to keep; of ids in and out the client has all."""
        return self.route in (ApiRoute.CHAT, ApiRoute.CHAT_TOKENS, ApiRoute.COMPLETIONS)

    @property
    def temperature(self) -> float:
        """At which a recorded call is sampled: OpenAI's default where it names none."""
        asked = self.body.get("temperature")
        return float(asked) if isinstance(asked, int | float) else 1.0

    def for_recording(self) -> "CompletionCall":
        """The same call, recorded. Raises BadRequest for an answer that repeats its prompt."""
        if self.body.get("echo"):
            raise BadRequest("echo cannot be recorded: leave it out, or name no session", param="echo")
        return replace(self, recorded=True)

    def as_shadow(self) -> "CompletionCall":
        """The call as its shadow is sent: to that version, answered in one piece, recorded."""
        kept = {name: value for name, value in self.body.items() if name not in _OF_STREAMS}
        return replace(
            self,
            target=ModelTarget(self.target.model, self.shadow),
            body=kept,
            stream=False,
            wants_usage=False,
            recorded=True,
        )

    def outbound(self, served_name: str, *, in_columns: bool = False) -> Mapping[str, Any] | None:
        """The body to send to an engine that serves the target as `served_name`; None: `raw` will do.
        in_columns: the engine can list texts and log-probabilities of tokens, which costs a tenth of an
        object for each token; what the client asked for itself stays in OpenAI's form."""
        changes: dict[str, Any] = {}
        if self.body["model"] != served_name:
            changes["model"] = served_name
        if self.stream and not self.wants_usage:
            options = self.body.get("stream_options") or {}
            changes["stream_options"] = {**options, "include_usage": True}
        if self.recorded:
            changes |= self._fields_for_recording(in_columns=in_columns)
        if not changes and "checkpoint" not in self.body:
            return None
        return {key: value for key, value in {**self.body, **changes}.items() if key != "checkpoint"}

    def _fields_for_recording(self, *, in_columns: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {"return_token_ids": True, "temperature": self.temperature}
        if not self.asks_for_logprobs:
            fields["logprobs"] = 0 if self.route is ApiRoute.COMPLETIONS else True
            if in_columns:
                fields["logprobs_as"] = "columns"
        return fields


def read_call(route: ApiRoute, raw: bytes, body: Any, limits: CallLimits) -> CompletionCall:
    """Raises BadRequest and its kin."""
    asked = as_object(body)
    check_limits(asked, limits)
    check_fields(route.value, FIELDS[route], asked)
    _check_for_route(route, asked, limits)
    options = asked.get("stream_options") or {}
    return CompletionCall(
        route=route,
        target=read_target(asked.get("model"), asked.get("checkpoint")),
        raw=raw,
        body=asked,
        stream=bool(asked.get("stream")),
        wants_usage=bool(options.get("include_usage")),
        return_token_ids=bool(asked.get("return_token_ids")),
    )


def as_object(body: Any) -> dict[str, Any]:
    """Raises BadRequest for a body that is no JSON object."""
    if not isinstance(body, dict):
        raise WrongType(f"the body is a JSON {type(body).__name__}, expected an object")
    return body


def _check_for_route(route: ApiRoute, body: Mapping[str, Any], limits: CallLimits) -> None:
    """What fields say about one another."""
    if body.get("stream_options") is not None and not body.get("stream"):
        raise BadRequest("stream_options is only for stream: true", param="stream_options")
    if route in (ApiRoute.CHAT, ApiRoute.CHAT_TOKENS):
        if body.get("top_logprobs") is not None and not body.get("logprobs"):
            raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
        _check_top_logprobs(body.get("top_logprobs"))
        check_messages(body.get("messages"))
        check_tools(body.get("tools"))
    if route is ApiRoute.COMPLETIONS:
        _check_prompt(body.get("prompt"))
    if route is ApiRoute.GENERATE:
        sampling = body.get("sampling_params") or {}
        check_limits(sampling, limits)
        check_fields("sampling_params", tables.GENERATE_SAMPLING_FIELDS, sampling)


def _check_top_logprobs(asked: int | None) -> None:
    if asked is not None and not 0 <= asked <= MAX_TOP_LOGPROBS:
        raise BadRequest(
            f"top_logprobs is {asked}, expected an integer from 0 to {MAX_TOP_LOGPROBS}", param="top_logprobs"
        )


def _check_prompt(prompt: Any) -> None:
    """A text, token ids, or a list of these. Raises BadRequest, and names what is neither."""
    parts = prompt if isinstance(prompt, list) else []
    if parts and not isinstance(parts[0], str | list):
        _check_ids(parts, "prompt")
        return
    for index, part in enumerate(parts):
        if isinstance(part, list):
            _check_ids(part, f"prompt[{index}]")
        elif not isinstance(part, str):
            raise BadRequest(f"prompt[{index}] is {part!r:.80}, expected a text or token ids", param="prompt")


def _check_ids(ids: list[Any], where: str) -> None:
    for index, one in enumerate(ids):
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            raise BadRequest(f"{where}[{index}] is {one!r:.80}, expected a token id", param="prompt")


def read_target(model: Any, checkpoint: Any = None) -> ModelTarget:
    """`incident`, `incident@head`, `incident@v12`, `incident@<checkpoint id>`; a checkpoint id beside the
    slug pins too. Raises BadRequest, also for two that differ."""
    slug, _, at = model.partition("@") if isinstance(model, str) else ("", "", "")
    if not SLUG.fullmatch(slug):
        raise BadRequest(f"model {model!r:.80}: it must name a model, e.g. `incident@v12`", param="model")
    named = ModelTarget(slug, _version_named(slug, at, "model") if at else None)
    if checkpoint is None:
        return named
    found = parse_checkpoint_id(str(checkpoint))
    if found is None or found.model != slug:
        raise BadRequest(
            f"checkpoint {checkpoint!r} is not one of {slug!r}; expected e.g. {checkpoint_id(slug, 1)}",
            param="checkpoint",
        )
    return _agreeing(named, found.version, "checkpoint")


def at_version(call: CompletionCall, header: str | None) -> CompletionCall:
    """The call, at the version that header X-Upcycle-Version names: `12`, `v12`, a checkpoint id, `head`.
    Raises BadRequest, also where the body names another one."""
    if header is None:
        return call
    said = header.strip()
    name = f"v{said}" if said.isascii() and said.isdigit() else said
    version = _version_named(call.target.model, name, VERSION_HEADER)
    return call if version is None else replace(call, target=_agreeing(call.target, version, VERSION_HEADER))


def _version_named(slug: str, name: str, param: str) -> int | None:
    """None: head. Raises BadRequest."""
    if name == "head":
        return None
    if (pinned := _PINNED.fullmatch(name)) is not None:
        return int(pinned[1])
    found = parse_checkpoint_id(name)
    if found is None or found.model != slug:
        raise BadRequest(
            f"{name!r:.80} names no version of {slug!r}: `head`, `v<number>` or a checkpoint id such as "
            f"{checkpoint_id(slug, 1)}",
            param=param,
        )
    return found.version


def _agreeing(named: ModelTarget, version: int, param: str) -> ModelTarget:
    if named.version not in (None, version):
        raise BadRequest(f"{param} says v{version}, and the model is {named}: name one version", param=param)
    return ModelTarget(named.model, version)


def check_limits(body: Mapping[str, Any], limits: CallLimits) -> None:
    """Raises BadRequest for a number beyond what the gateway allows."""
    for name in _LIMITED:
        value = body.get(name)
        if value is None:
            continue
        most = limits.max_n if name in _CHOICES else limits.max_tokens
        least = 0 if name == "max_tokens" and body.get("echo") else 1  # the prompt alone, with its scores
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            setting = "MAX_N" if name in _CHOICES else "MAX_TOKENS"
            raise BadRequest(
                f"{name} is {value!r:.80}, expected an integer from {least} to {most}, the most that this "
                f"gateway lets a request ask for (MODEL_GATEWAY_{setting})",
                param=name,
            )
