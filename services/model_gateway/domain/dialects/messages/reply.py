"""A chat reply as a message of /v1/messages, and its error envelope."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from model_gateway.domain.dialects.dialect import Asked, Body
from model_gateway.domain.dialects.replies import Usage, calls_in, only_choice, reasoning_in, usage_in
from model_gateway.domain.errors import BadReply, GatewayError

_REASONS: Final = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def reply_of(asked: Asked, chat: Mapping[str, Any]) -> Body:
    """The whole message. Raises BadReply."""
    choice = only_choice(chat)
    message = choice.get("message") or {}
    content: list[Body] = []
    if thought := reasoning_in(message):
        content.append(thinking_block(thought))
    if text := str(message.get("content") or message.get("refusal") or ""):
        content.append(text_block(text))
    content += [_tool_use(call) for call in calls_in(message)]
    return {
        **message_body(asked, content),
        **ending(choice.get("finish_reason"), choice.get("stop_reason")),
        "usage": usage_body(usage_in(chat) or Usage()),
    }


def message_body(asked: Asked, content: list[Body]) -> Body:
    """A message without its end."""
    return {
        "id": f"msg_{asked.request_id}",
        "type": "message",
        "role": "assistant",
        "model": asked.body["model"],
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_body(Usage()),
    }


def ending(finish_reason: Any, stopped_by: Any) -> Body:
    """Why the answer ended. `stopped_by`: the stop string, where it was one. Raises BadReply."""
    if finish_reason == "stop":
        if isinstance(stopped_by, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped_by}
        return {"stop_reason": "end_turn", "stop_sequence": None}
    if finish_reason not in _REASONS:
        raise BadReply(f"the engine ended the answer with {finish_reason!r}")
    return {"stop_reason": _REASONS[finish_reason], "stop_sequence": None}


def thinking_block(thought: str) -> Body:
    """What the policy thought. Nothing signs it, and none is asked for when it comes back."""
    return {"type": "thinking", "thinking": thought, "signature": ""}


def text_block(text: str) -> Body:
    """The answer's text."""
    return {"type": "text", "text": text, "citations": None}


def tool_block(call: Mapping[str, Any], arguments: Body) -> Body:
    """A call of a tool."""
    function = call.get("function") or {}
    name = str(function.get("name") or "")
    return {"type": "tool_use", "id": str(call.get("id") or ""), "name": name, "input": arguments}


def usage_body(usage: Usage) -> Body:
    """Anthropic counts what came from the cache beside the input, not in it."""
    return {
        "input_tokens": max(usage.prompt - usage.cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def envelope(error: GatewayError, request_id: str) -> Body:
    """Anthropic's error envelope; the code of OpenAI's and the field are beside it."""
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    said = {"type": kind, "message": error.message, "code": error.code, "param": error.param}
    return {"type": "error", "error": said, "request_id": request_id}


def _tool_use(call: Mapping[str, Any]) -> Body:
    arguments = (call.get("function") or {}).get("arguments") or "{}"
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise BadReply(f"the policy called a tool with {arguments!r:.200}, which is no JSON object")
    return tool_block(call, parsed)
