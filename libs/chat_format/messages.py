"""Conversation messages as the templates read them, and the guard that keeps content from forging turns."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from chat_format.errors import InvalidMessages
from upcycle.harness.parsing import AssistantTurn, with_reasoning

Message = Mapping[str, Any]
ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def assistant_message(turn: AssistantTurn) -> dict[str, Any]:
    """The history entry of a sampled turn, in the OpenAI shape with arguments as an object."""
    content = with_reasoning(turn.reasoning, turn.text)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if turn.tool_calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in turn.tool_calls
        ]
    return message


def tool_message(content: str) -> dict[str, Any]:
    """The history entry of one tool result."""
    return {"role": "tool", "content": content}


def normalise(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates expect them: known roles, content a string, tool-call arguments an object.

    OpenAI clients send arguments as a JSON string and content as a list of text parts; both are accepted.
    Raises InvalidMessages, naming the index.
    """
    if not messages:
        raise InvalidMessages("messages is empty; a prompt needs at least one message")
    return [_normalise_one(index, message) for index, message in enumerate(messages)]


def _normalise_one(index: int, message: Message) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidMessages(f"messages[{index}].role is {role!r}; use one of {sorted(ROLES)}")
    plain = dict(message)
    plain["content"] = _text(index, message.get("content"))
    calls = message.get("tool_calls")
    if calls:
        plain["tool_calls"] = [_call(index, call) for call in calls]
    else:
        plain.pop("tool_calls", None)
    return plain


def _text(index: int, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(p, Mapping) and p.get("type") == "text" for p in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise InvalidMessages(f"messages[{index}].content{_other_than_text(content)}; text alone is read here")


def _other_than_text(content: Any) -> str:
    """Which part of a content is none, and what it is."""
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            return f"[{number}] is of type {kind!r:.40}"
    return f" is {type(content).__name__}"


def _call(index: int, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidMessages(f"messages[{index}].tool_calls holds an entry without function.name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidMessages(f"messages[{index}].tool_calls arguments are not JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise InvalidMessages(
            f"messages[{index}].tool_calls arguments are {type(arguments).__name__}; send a JSON object"
        )
    return {**call, "type": "function", "function": {"name": function["name"], "arguments": dict(arguments)}}


def defuse(value: Any, control_tokens: Sequence[str]) -> Any:
    """The same JSON value with every control token in its strings broken by a space.

    Content comes from users and environments: text that spells `<|im_end|>` must not end a turn.
    """
    if isinstance(value, str):
        for token in control_tokens:
            if token in value:
                value = value.replace(token, f"{token[0]} {token[1:]}")
        return value
    if isinstance(value, Mapping):
        return {defuse(key, control_tokens): defuse(item, control_tokens) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [defuse(item, control_tokens) for item in value]
    return value
