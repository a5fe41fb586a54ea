"""Anthropic's messages: blocks to the messages of a chat."""

from typing import Any, Final

import orjson

from model_gateway.domain.dialects.reading import Place, joined_text
from model_gateway.domain.errors import BadRequest, Unsupported

Message = dict[str, Any]

_TEXT: Final = ("text",)
_RESULT_TEXT: Final = "a tool's result is text here"
# A chat's tool message has no flag for it, and the policy must not take the failure for a result.
_FAILED: Final = "Error: "


def messages_of(system: Any, given: Any) -> list[Message]:
    """The conversation. Raises BadRequest and its kin."""
    messages: list[Message] = []
    if system:
        text = joined_text(Place(system, "system"), _TEXT, "the system prompt is text")
        messages.append({"role": "system", "content": text})
    if not given:
        raise BadRequest("messages is empty; a prompt needs at least one message", param="messages")
    for one in Place(given, "messages").each():
        messages += _messages(one)
    if messages[-1]["role"] == "assistant":
        raise Unsupported(
            "the last message is the assistant's, and no engine goes on from it; end with a user's message",
            param="messages",
        )
    return messages


def _messages(message: Place) -> list[Message]:
    role = message.text("role")
    if role == "assistant":
        return [_assistant(message["content"])]
    if role == "system":
        text = joined_text(message["content"], _TEXT, "a system message is text")
        return [{"role": "system", "content": text}]
    if role == "user":
        return _user(message["content"])
    raise message.wrong("role", "use user, assistant or system")


def _assistant(content: Place) -> Message:
    if isinstance(content.value, str):
        return {"role": "assistant", "content": content.value}
    turn: Message = {"role": "assistant", "content": ""}
    for block in content.each():
        kind = block.mapping().get("type")
        if kind == "text":
            turn["content"] += block.text("text")
        elif kind == "tool_use":
            arguments = orjson.dumps(block.object("input")).decode()
            function = {"name": block.text("name"), "arguments": arguments}
            call = {"id": block.text("id"), "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)
        elif kind == "thinking":
            turn["reasoning"] = turn.get("reasoning", "") + block.text("thinking")
        else:
            raise block.unsupported("type", "an assistant's message has text, tool_use and thinking")
    return turn


def _user(content: Place) -> list[Message]:
    """Tool results first, as their own messages, then what the user says."""
    if isinstance(content.value, str):
        return [{"role": "user", "content": content.value}]
    blocks = [_user_block(block) for block in content.each()]
    if not blocks:
        raise content.empty()
    results = [block for block in blocks if "role" in block]
    parts = [block for block in blocks if "role" not in block]
    if not parts:
        return results
    if all(part["type"] == "text" for part in parts):
        return [*results, {"role": "user", "content": "".join(part["text"] for part in parts)}]
    return [*results, {"role": "user", "content": parts}]


def _user_block(block: Place) -> dict[str, Any]:
    """A message of its own for a tool's result, else a part of the user's."""
    kind = block.mapping().get("type")
    if kind == "tool_result":
        return _result(block)
    if kind == "text":
        return {"type": "text", "text": block.text("text")}
    if kind == "image":
        return _image(block)
    raise block.unsupported("type", "a user's message has text, image and tool_result")


def _result(block: Place) -> Message:
    has_content = block.mapping().get("content") is not None
    text = joined_text(block["content"], _TEXT, _RESULT_TEXT) if has_content else ""
    if block.mapping().get("is_error"):
        text = _FAILED + text
    return {"role": "tool", "tool_call_id": block.text("tool_use_id"), "content": text}


def _image(block: Place) -> dict[str, Any]:
    source = block["source"]
    kind = source.text("type")
    if kind == "url":
        return {"type": "image_url", "image_url": {"url": source.text("url")}}
    if kind == "base64":
        url = f"data:{source.text('media_type')};base64,{source.text('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    raise source.unsupported("type", "no files are stored; use base64 or url")
