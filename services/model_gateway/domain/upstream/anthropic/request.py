"""A call of the chat route as a request to Anthropic's /v1/messages."""

from collections.abc import Mapping
from typing import Any, Final

from model_gateway.domain.calls import ApiRoute, CompletionCall
from model_gateway.domain.dialects.reading import Place
from model_gateway.domain.upstream.anthropic.conversation import conversation_of
from model_gateway.domain.upstream.openai import check_call, unsupported
from model_gateway.domain.upstream.providers import Provider, UpstreamModel
from model_gateway.domain.upstream.wire import Body, UpstreamRequest, words

PATH: Final = "/messages"
VERSION: Final = "2023-06-01"
_SAME: Final = ("temperature", "top_p", "top_k")
_READ: Final = words(
    "model messages tools tool_choice parallel_tool_calls max_tokens max_completion_tokens stop stream "
    "stream_options user response_format reasoning_effort"
)
_LABELS: Final = words(
    "metadata safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options"
)
_NOTHING: Final[Mapping[str, tuple[Any, ...]]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
}
"""Values of fields that it does not have which ask for nothing, beside null and false."""
_CHOICES: Final = {"auto": "auto", "required": "any", "none": "none"}


def headers(provider: Provider) -> Mapping[str, str]:
    """With the key, where there is one."""
    version = {"anthropic-version": VERSION}
    return {**version, "x-api-key": provider.key} if provider.key else version


def request(call: CompletionCall, model: UpstreamModel) -> UpstreamRequest:
    """Raises BadRequest and its kin."""
    check_call(call, model)
    if call.route is not ApiRoute.CHAT:
        raise unsupported(model, "model", f"its provider has no {call.route.value}; ask for a chat")
    asked = call.body
    _check_fields(asked, model)
    system, turns = conversation_of(asked.get("messages"))
    body: Body = {"model": model.served_name, "max_tokens": _max_tokens(asked, model), "messages": turns}
    if system:
        body["system"] = system
    body |= {name: asked[name] for name in _SAME if asked.get(name) is not None}
    if stop := asked.get("stop"):
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if asked.get("user"):
        body["metadata"] = {"user_id": asked["user"]}
    if tools := asked.get("tools"):
        body["tools"] = [_tool(tool) for tool in Place(tools, "tools").each()]
    body |= _tool_choice(asked, model) | _output(asked)
    if call.stream:
        body["stream"] = True
    return UpstreamRequest(PATH, body)


def _check_fields(asked: Mapping[str, Any], model: UpstreamModel) -> None:
    for name, value in asked.items():
        if name in _READ or name in _SAME or name in _LABELS:
            continue
        if value is None or value is False or value in _NOTHING.get(name, ()):
            continue
        raise unsupported(model, name, "its provider has nothing of the kind; leave it out")


def _max_tokens(asked: Mapping[str, Any], model: UpstreamModel) -> int:
    named = asked.get("max_completion_tokens") or asked.get("max_tokens")
    return int(named) if named is not None else model.max_tokens


def _tool(tool: Place) -> Body:
    if tool.text("type") != "function":
        raise tool.unsupported("type", "use function")
    function = tool["function"]
    body: Body = {"name": function.text("name")}
    if (description := function.optional_text("description")) is not None:
        body["description"] = description
    has_parameters = function.mapping().get("parameters") is not None
    body["input_schema"] = (
        function.object("parameters") if has_parameters else {"type": "object", "properties": {}}
    )
    if function.mapping().get("strict") is not None:
        body["strict"] = function.mapping()["strict"]
    return body


def _tool_choice(asked: Mapping[str, Any], model: UpstreamModel) -> Body:
    choice, is_single = asked.get("tool_choice"), asked.get("parallel_tool_calls") is False
    if choice is None and not (is_single and asked.get("tools")):
        return {}
    if choice is None or isinstance(choice, str):
        kind = _CHOICES.get(choice or "auto")
        if kind is None:
            raise unsupported(model, "tool_choice", f"use {', '.join(_CHOICES)} or a function")
        said: Body = {"type": kind}
    else:
        place = Place(choice, "tool_choice")
        if place.text("type") != "function":
            raise place.unsupported("type", "this provider takes a function")
        said = {"type": "tool", "name": place["function"].text("name")}
    if is_single and said["type"] != "none":
        said["disable_parallel_tool_use"] = True
    return {"tool_choice": said}


def _output(asked: Mapping[str, Any]) -> Body:
    config: Body = {}
    if asked.get("reasoning_effort") is not None:
        config["effort"] = asked["reasoning_effort"]
    if asked.get("response_format") is not None:
        wanted = Place(asked["response_format"], "response_format")
        kind = wanted.text("type")
        if kind == "json_schema":
            schema = wanted["json_schema"].object("schema")
            config["format"] = {"type": "json_schema", "schema": schema}
        elif kind != "text":
            raise wanted.unsupported("type", "this provider takes a json_schema")
    return {"output_config": config} if config else {}
