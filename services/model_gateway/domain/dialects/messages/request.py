"""A request to /v1/messages as a call of the chat route."""

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
from model_gateway.domain.dialects.messages.conversation import messages_of
from model_gateway.domain.dialects.messages.fields import MESSAGES_FIELDS
from model_gateway.domain.dialects.reading import Place
from model_gateway.domain.errors import BadRequest
from model_gateway.domain.fields import check_fields

PATH: Final = "/v1/messages"
PARAMS: Final = {
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
_SAME: Final = ("model", "checkpoint", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed")
_TOOL_FIELDS: Final = frozenset(
    {"type", "name", "description", "input_schema", "strict", "cache_control", "eager_input_streaming"}
)
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


def read_request(raw: bytes, body: Any, limits: CallLimits) -> CompletionCall:
    """Raises BadRequest and its kin, before anything is asked of an engine."""
    asked = as_object(body)
    check_limits(asked, limits)
    check_fields(PATH, MESSAGES_FIELDS, asked)
    if asked.get("max_tokens") is None:
        raise BadRequest("max_tokens is missing; this route asks for it", param="max_tokens")
    chat = chat_of(asked)
    return read_call(ApiRoute.CHAT, orjson.dumps(chat), chat, limits)


def chat_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The chat body."""
    chat: dict[str, Any] = {name: asked[name] for name in _SAME if asked.get(name) is not None}
    chat["messages"] = messages_of(asked.get("system"), asked.get("messages"))
    if asked.get("stop_sequences"):
        chat["stop"] = asked["stop_sequences"]
    if tools := asked.get("tools"):
        chat["tools"] = [_tool(tool) for tool in Place(tools, "tools").each()]
    chat |= _tool_choice(asked) | _output(asked)
    _check_thinking(asked)
    if user := (asked.get("metadata") or {}).get("user_id"):
        chat["user"] = str(user)
    if asked.get("metadata"):
        chat["metadata"] = asked["metadata"]
    if asked.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _tool(tool: Place) -> dict[str, Any]:
    if tool.mapping().get("type") not in (None, "custom"):
        raise tool.unsupported("type", "this server has no built-in tools; use custom")
    tool.only(_TOOL_FIELDS)
    # In the order of OpenAI's tools: the template shows them to the policy as they stand.
    function: dict[str, Any] = {"name": tool.text("name")}
    if (description := tool.optional_text("description")) is not None:
        function["description"] = description
    function["parameters"] = tool.object("input_schema")
    if tool.mapping().get("strict") is not None:
        function["strict"] = tool.mapping()["strict"]
    return {"type": "function", "function": function}


def _tool_choice(asked: Mapping[str, Any]) -> dict[str, Any]:
    if asked.get("tool_choice") is None:
        return {}
    choice = Place(asked["tool_choice"], "tool_choice")
    choice.only(frozenset({"type", "name", "disable_parallel_tool_use"}))
    kind = choice.text("type")
    said: dict[str, Any] = {}
    if choice.mapping().get("disable_parallel_tool_use"):
        said["parallel_tool_calls"] = False
    if kind == "tool":
        return {**said, "tool_choice": {"type": "function", "function": {"name": choice.text("name")}}}
    if kind not in _CHOICES:
        raise choice.wrong("type", f"use {', '.join(_CHOICES)} or tool")
    return {**said, "tool_choice": _CHOICES[kind]}


def _output(asked: Mapping[str, Any]) -> dict[str, Any]:
    if asked.get("output_config") is None:
        return {}
    config = Place(asked["output_config"], "output_config")
    config.only(frozenset({"effort", "format"}))
    said: dict[str, Any] = {}
    if (effort := config.optional_text("effort")) is not None:
        said["reasoning_effort"] = effort
    if config.mapping().get("format") is not None:
        wanted = config["format"]
        if wanted.text("type") != "json_schema":
            raise wanted.wrong("type", "use json_schema")
        schema = {"name": "output", "schema": wanted.object("schema"), "strict": True}
        said["response_format"] = {"type": "json_schema", "json_schema": schema}
    return said


def _check_thinking(asked: Mapping[str, Any]) -> None:
    """What the policy thinks is given where there is some; how much of it cannot be bounded."""
    if asked.get("thinking") is None:
        return
    thinking = Place(asked["thinking"], "thinking")
    if thinking.text("type") not in ("disabled", "adaptive"):
        raise thinking.unsupported("type", "no engine keeps to a budget; use adaptive or disabled")
