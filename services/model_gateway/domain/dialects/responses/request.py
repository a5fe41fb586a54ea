"""A request to /v1/responses as a call of the chat route."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from model_gateway.domain.calls import (
    ApiRoute,
    CallLimits,
    CompletionCall,
    as_object,
    check_limits,
    read_call,
)
from model_gateway.domain.dialects.reading import Place
from model_gateway.domain.dialects.responses.fields import RESPONSES_FIELDS
from model_gateway.domain.dialects.responses.items import messages_of
from model_gateway.domain.errors import BadRequest, Unsupported
from model_gateway.domain.fields import check_fields

PATH: Final = "/v1/responses"
LOGPROBS: Final = "message.output_text.logprobs"
# Our reasoning items carry their text, which comes back in the next input: there is nothing to encrypt.
_INCLUDES: Final = (LOGPROBS, "reasoning.encrypted_content")
_SAME: Final = (
    "model", "checkpoint", "temperature", "top_p", "min_p", "top_k", "seed", "stop", "parallel_tool_calls",
    "user", "metadata", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
PARAMS: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
_FORMATS: Final = ("text", "json_object", "json_schema")


def read_request(raw: bytes, body: Any, limits: CallLimits) -> CompletionCall:
    """Raises BadRequest and its kin, before anything is asked of an engine."""
    asked = as_object(body)
    check_fields(PATH, RESPONSES_FIELDS, asked)
    check_limits(asked, limits)
    chat = chat_of(asked)
    return read_call(ApiRoute.CHAT, orjson.dumps(chat), chat, limits)


def chat_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The chat body."""
    chat: dict[str, Any] = {name: asked[name] for name in _SAME if asked.get(name) is not None}
    chat["messages"] = messages_of(asked.get("instructions"), asked.get("input"))
    if asked.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = asked["max_output_tokens"]
    if tools := asked.get("tools"):
        chat["tools"] = [_tool(tool) for tool in Place(tools, "tools").each()]
    if asked.get("tool_choice") is not None:
        chat["tool_choice"] = _tool_choice(asked["tool_choice"])
    chat |= _text(asked) | _reasoning(asked) | _logprobs(asked)
    if asked.get("stream"):
        _check_stream_options(asked)
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _tool(tool: Place) -> dict[str, Any]:
    if tool.text("type") != "function":
        raise tool.unsupported("type", "this server has no built-in tools; use function")
    tool.only(frozenset({"type", "name", "description", "parameters", "strict"}))
    function: dict[str, Any] = {"name": tool.text("name")}
    if (description := tool.optional_text("description")) is not None:
        function["description"] = description
    if tool.mapping().get("parameters") is not None:
        function["parameters"] = tool.object("parameters")
    if tool.mapping().get("strict") is not None:
        function["strict"] = tool.mapping()["strict"]
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise BadRequest(
                f"tool_choice is {choice!r:.80}; use auto, none, required or a function", param="tool_choice"
            )
        return choice
    place = Place(choice, "tool_choice")
    kind = place.text("type")
    if kind == "function":
        return {"type": "function", "function": {"name": place.text("name")}}
    if kind != "allowed_tools":
        raise place.unsupported("type", "use function or allowed_tools")
    tools = [{"type": "function", "function": {"name": tool.text("name")}} for tool in place["tools"].each()]
    return {"type": "allowed_tools", "allowed_tools": {"mode": place.text("mode"), "tools": tools}}


def _text(asked: Mapping[str, Any]) -> dict[str, Any]:
    if asked.get("text") is None:
        return {}
    text = Place(asked["text"], "text")
    text.only(frozenset({"format", "verbosity"}))
    if text.mapping().get("verbosity") not in (None, "medium"):
        raise text.unsupported("verbosity", "no engine has it; say it in the prompt")
    if text.mapping().get("format") is None:
        return {}
    wanted = text["format"]
    kind = wanted.text("type")
    if kind not in _FORMATS:
        raise wanted.wrong("type", f"use {', '.join(_FORMATS)}")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"response_format": {"type": kind}}
    schema = {name: value for name, value in wanted.mapping().items() if name != "type" and value is not None}
    wanted.text("name")
    wanted.object("schema")
    return {"response_format": {"type": kind, "json_schema": schema}}


def _reasoning(asked: Mapping[str, Any]) -> dict[str, Any]:
    if asked.get("reasoning") is None:
        return {}
    reasoning = Place(asked["reasoning"], "reasoning")
    reasoning.only(frozenset({"effort", "summary", "generate_summary"}))
    for name in ("summary", "generate_summary"):
        if reasoning.mapping().get(name) not in (None, "auto"):
            raise reasoning.unsupported(
                name, "reasoning is given as it was sampled; use auto or leave it out"
            )
    effort = reasoning.optional_text("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _logprobs(asked: Mapping[str, Any]) -> dict[str, Any]:
    include = asked.get("include") or []
    for one in include:
        if one not in _INCLUDES:
            raise Unsupported(f"include has {one!r:.80}; use {' or '.join(_INCLUDES)}", param="include")
    if LOGPROBS not in include:
        if asked.get("top_logprobs"):
            raise BadRequest(f"top_logprobs needs include: [{LOGPROBS!r}]", param="top_logprobs")
        return {}
    return {"logprobs": True, "top_logprobs": asked.get("top_logprobs") or 0}


def _check_stream_options(asked: Mapping[str, Any]) -> None:
    if asked.get("stream_options") is not None:
        options = Place(asked["stream_options"], "stream_options")
        options.only(frozenset({"include_obfuscation"}))
        if options.mapping().get("include_obfuscation"):
            raise options.unsupported("include_obfuscation", "events are sent as they are")
