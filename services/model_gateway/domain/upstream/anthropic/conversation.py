"""Messages of a chat as Anthropic's: blocks, the system prompt apart, tool results in the user's turns."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from model_gateway.domain.dialects.reading import Place, joined_text
from model_gateway.domain.errors import BadRequest, Unsupported

Block = dict[str, Any]
_TEXT: Final = ("text",)
_SYSTEM: Final = ("system", "developer")
_DATA_URL: Final = "data:"
_BASE64: Final = ";base64,"


def conversation_of(given: Any) -> tuple[str, list[Block]]:
    """The system prompt, and the turns. Raises BadRequest and its kin."""
    system: list[str] = []
    turns: list[Block] = []
    for message in Place(given, "messages").each():
        role = message.text("role")
        if role in _SYSTEM:
            if turns:
                raise message.unsupported("role", "this provider takes the system prompt at the start only")
            system.append(joined_text(message["content"], _TEXT, "the system prompt is text"))
            continue
        speaker = "assistant" if role == "assistant" else "user"
        blocks = _blocks(role, message)
        if turns and turns[-1]["role"] == speaker:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": speaker, "content": blocks})
    if not turns:
        raise BadRequest("messages has no turn of a user; this provider needs one", param="messages")
    return "\n\n".join(system), turns


def _blocks(role: str, message: Place) -> list[Block]:
    if role == "tool":
        text = joined_text(message["content"], _TEXT, "a tool's result is text here")
        return [{"type": "tool_result", "tool_use_id": message.text("tool_call_id"), "content": text}]
    if role == "assistant":
        return _assistant(message)
    return _parts(message["content"])


def _assistant(message: Place) -> list[Block]:
    said = message.mapping()
    for name in ("reasoning", "reasoning_content"):
        if said.get(name):
            raise message.unsupported(name, "this provider takes only thoughts that it signed; leave it out")
    blocks = _parts(message["content"]) if said.get("content") else []
    if any(block["type"] != "text" for block in blocks):
        raise message.unsupported("content", "an assistant's message is text")
    calls = message["tool_calls"]
    if calls.value:
        blocks += [_call(call) for call in calls.each()]
    return blocks


def _parts(content: Place) -> list[Block]:
    if isinstance(content.value, str):
        return [{"type": "text", "text": content.value}] if content.value else []
    return [_part(part) for part in content.each()]


def _part(part: Place) -> Block:
    kind = part.text("type")
    if kind == "text":
        return {"type": "text", "text": part.text("text")}
    if kind != "image_url":
        raise part.unsupported("type", "this provider takes text and image_url")
    return {"type": "image", "source": _image(part["image_url"])}


def _image(image: Place) -> Block:
    url = image.text("url")
    if not url.startswith(_DATA_URL):
        return {"type": "url", "url": url}
    media_type, marker, data = url.removeprefix(_DATA_URL).partition(_BASE64)
    if not marker:
        raise image.wrong("url", "a data URL is data:<media type>;base64,<data>")
    return {"type": "base64", "media_type": media_type, "data": data}


def _call(call: Place) -> Block:
    function = call["function"]
    return {
        "type": "tool_use",
        "id": call.text("id"),
        "name": function.text("name"),
        "input": _arguments(function),
    }


def _arguments(function: Place) -> Mapping[str, Any]:
    try:
        parsed = orjson.loads(function.text("arguments") or "{}")
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        raise Unsupported(
            f"{function.at('arguments')} is no JSON object, which this provider needs",
            param=function.at("arguments"),
        )
    return parsed
