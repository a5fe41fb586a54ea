"""A chat reply as a response of /v1/responses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from model_gateway.domain.dialects.dialect import Asked, Body
from model_gateway.domain.dialects.replies import Usage, calls_in, only_choice, reasoning_in, usage_in
from model_gateway.domain.dialects.responses.request import LOGPROBS

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_FINISHED: Final = ("stop", "tool_calls", "function_call")
_ECHOED: Final = (
    "instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs", "user", "safety_identifier",
    "prompt_cache_key", "reasoning",
)  # fmt: skip


def reply_of(asked: Asked, chat: Mapping[str, Any]) -> Body:
    """The whole response. Raises BadReply."""
    choice = only_choice(chat)
    message = choice.get("message") or {}
    ids = ItemIds(asked.request_id)
    output = []
    if thought := reasoning_in(message):
        output.append(reasoning_item(ids.next("rs"), thought))
    calls = calls_in(message)
    text = str(message.get("content") or message.get("refusal") or "")
    if text or not calls:
        logprobs = text_logprobs(choice) if wants_logprobs(asked) else []
        output.append(message_item(ids.next("msg"), text, logprobs))
    output += [call_item(ids.next("fc"), call) for call in calls]
    return response_body(asked, output, choice.get("finish_reason"), usage_in(chat) or Usage())


def response_body(asked: Asked, output: list[Body], finish_reason: Any, usage: Usage | None) -> Body:
    """A response; `finish_reason` None is one that is still in progress."""
    state = ending(finish_reason)
    for item in output:
        if state.status == "incomplete" and item is output[-1]:
            item["status"] = "incomplete"
    return {
        "id": f"resp_{asked.request_id}",
        "object": "response",
        "created_at": asked.at_s,
        "status": state.status,
        "background": False,
        "error": state.error,
        "incomplete_details": state.incomplete,
        "model": asked.body["model"],
        "output": output,
        **{name: asked.body.get(name) for name in _ECHOED},
        "metadata": asked.body.get("metadata") or {},
        "parallel_tool_calls": asked.body.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "service_tier": "default",
        "store": False,
        "text": asked.body.get("text") or {"format": {"type": "text"}},
        "tool_choice": asked.body.get("tool_choice") or "auto",
        "tools": asked.body.get("tools") or [],
        "truncation": "disabled",
        "usage": None if usage is None else usage_body(usage),
    }


@dataclass(frozen=True, slots=True)
class ResponseState:
    """How a response stands."""

    status: str
    incomplete: Body | None = None
    error: Body | None = None


def ending(finish_reason: Any) -> ResponseState:
    """What a chat's finish reason means for a response."""
    if finish_reason is None:
        return ResponseState("in_progress")
    if finish_reason in _FINISHED:
        return ResponseState("completed")
    if finish_reason in _INCOMPLETE:
        return ResponseState("incomplete", incomplete={"reason": _INCOMPLETE[finish_reason]})
    message = f"the engine ended the answer with {finish_reason!r}"
    return ResponseState("failed", error={"code": "server_error", "message": message})


class ItemIds:
    """Ids of output items: the request's, counted."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._made = 0

    def next(self, prefix: str) -> str:
        """The next one."""
        self._made += 1
        return f"{prefix}_{self._request_id}_{self._made}"


def reasoning_item(item_id: str, thought: str, status: str = "completed") -> Body:
    """What the policy thought, in the clear: the client sends it back as it is."""
    content = [{"type": "reasoning_text", "text": thought}] if thought else []
    return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}


def message_item(item_id: str, text: str, logprobs: list[Body], status: str = "completed") -> Body:
    """The answer's text."""
    content = [text_part(text, logprobs)]
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def text_part(text: str, logprobs: list[Body]) -> Body:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(item_id: str, call: Mapping[str, Any], status: str = "completed") -> Body:
    """A call of a function."""
    function = call.get("function") or {}
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": str(call.get("id") or item_id),
        "name": str(function.get("name") or ""),
        "arguments": str(function.get("arguments") or ""),
        "status": status,
    }


def wants_logprobs(asked: Asked) -> bool:
    """Whether the client asked for them; the gateway may have asked the engine for its own purposes."""
    return LOGPROBS in (asked.body.get("include") or ())


def text_logprobs(choice: Mapping[str, Any]) -> list[Body]:
    """Of a choice or of a chunk's choice."""
    content = (choice.get("logprobs") or {}).get("content") or ()
    return [
        {
            "token": one.get("token"),
            "logprob": one.get("logprob"),
            "bytes": one.get("bytes") or [],
            "top_logprobs": one.get("top_logprobs") or [],
        }
        for one in content
    ]


def usage_body(usage: Usage) -> Body:
    """Tokens in the words of this route."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }
