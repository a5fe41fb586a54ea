"""Providers that speak OpenAI's chat completions and completions: the body as it came, the reply as it is."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from model_gateway.domain.calls import ApiRoute, CompletionCall
from model_gateway.domain.errors import BadRequest, Unsupported
from model_gateway.domain.upstream.errors import UpstreamFailed
from model_gateway.domain.upstream.providers import Provider, UpstreamModel
from model_gateway.domain.upstream.refusals import without_key
from model_gateway.domain.upstream.sse import ServerEvent
from model_gateway.domain.upstream.wire import Body, UpstreamRequest, UpstreamWire, words

_DONE: Final = b"[DONE]"
_COMMON: Final = words(
    "model n max_tokens seed temperature top_p frequency_penalty presence_penalty stop logit_bias stream "
    "stream_options user"
)
_FIELDS: Final[Mapping[ApiRoute, frozenset[str]]] = {
    ApiRoute.CHAT: _COMMON
    | words(
        "messages tools tool_choice parallel_tool_calls max_completion_tokens logprobs top_logprobs "
        "response_format reasoning_effort safety_identifier prompt_cache_key prompt_cache_retention"
    ),
    ApiRoute.COMPLETIONS: _COMMON | words("prompt best_of logprobs echo suffix"),
}
_LABELS: Final = frozenset({"metadata", "prompt_cache_options"})
"""That change no answer, and that providers take only beside a store of theirs, or not at all."""
_OFF: Final = (None, False)


def headers(provider: Provider) -> Mapping[str, str]:
    """With the key, where there is one."""
    return {"authorization": f"Bearer {provider.key}"} if provider.key else {}


def check_call(call: CompletionCall, model: UpstreamModel) -> None:
    """What no model of a provider can honour. Raises BadRequest, Unsupported."""
    if call.target.version is not None or call.body.get("checkpoint") is not None:
        raise BadRequest(f"model {model.name!r} has no versions here; name it without one", param="model")
    for name in ("return_token_ids", "return_tokens_as_token_ids", "prompt_token_ids"):
        if call.body.get(name) not in _OFF:
            raise unsupported(model, name, "its token ids are unknown here; leave it out")
    if call.route not in _FIELDS:
        raise unsupported(model, "model", f"{call.route.value} is about tokens, which are unknown here")


def unsupported(model: UpstreamModel, name: str, why: str) -> Unsupported:
    """The error for a field that a model of a provider cannot honour."""
    return Unsupported(f"{name} cannot be honoured by {model.name!r}: {why}", param=name)


def request(call: CompletionCall, model: UpstreamModel) -> UpstreamRequest:
    """Raises BadRequest, Unsupported."""
    check_call(call, model)
    known = _FIELDS[call.route] | model.provider.extra_fields
    body: Body = {}
    for name, value in call.body.items():
        if name in known and name not in _LABELS:
            body[name] = value
        elif name not in _LABELS and value not in _OFF:
            raise unsupported(
                model, name, "its provider has no such field; leave it out, or name it in extra_fields"
            )
    body["model"] = model.served_name
    if call.stream:
        body["stream_options"] = {**(call.body.get("stream_options") or {}), "include_usage": True}
    return UpstreamRequest(call.route.value.removeprefix("/v1"), body)


def reply(said: Mapping[str, Any], _: UpstreamModel) -> Mapping[str, Any]:
    """As it is. Raises ValueError for what is no completion."""
    choices = said.get("choices")
    if not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices) or not choices:
        raise ValueError("answered without choices")
    return said


class OpenAiStream:
    """Chunks as they are."""

    def __init__(self, model: UpstreamModel, _: int) -> None:
        self._provider = model.provider
        self._has_reason = False
        self._is_closed = False

    @property
    def is_done(self) -> bool:
        """Some servers leave the last event out."""
        return self._is_closed or self._has_reason

    @property
    def is_closed(self) -> bool:
        """Whether `[DONE]` was seen."""
        return self._is_closed

    def feed(self, event: ServerEvent) -> list[Body]:
        """Raises ValueError, UpstreamFailed."""
        if event.data.strip() == _DONE:
            self._is_closed = True
            return []
        chunk = orjson.loads(event.data)
        if not isinstance(chunk, dict):
            raise ValueError(f"sent an event that is a JSON {type(chunk).__name__}")
        if error := chunk.get("error"):
            said = error.get("message") if isinstance(error, Mapping) else error
            raise UpstreamFailed(
                f"provider {self._provider.name!r} broke its answer off: "
                f"{without_key(str(said), self._provider)}"
            )
        for choice in chunk.get("choices") or ():
            if not isinstance(choice, dict):
                raise ValueError("sent a choice that is no object")
            self._has_reason = self._has_reason or bool(choice.get("finish_reason"))
        return [chunk]


WIRE: Final = UpstreamWire(headers, request, reply, OpenAiStream)
