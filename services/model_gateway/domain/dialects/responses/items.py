"""The input of a response: items to the messages of a chat."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from model_gateway.domain.dialects.reading import Place, joined_text
from model_gateway.domain.errors import BadRequest

Message = dict[str, Any]

_TEXT_PARTS: Final = ("input_text", "output_text", "text")
_REASONING_PARTS: Final = ("reasoning_text",)
_NO_STORE: Final = "nothing is stored here; send the item itself"


def messages_of(instructions: Any, given: Any) -> list[Message]:
    """The conversation. Raises BadRequest and its kin."""
    messages: list[Message] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if given is None:
        raise BadRequest("input is missing; send a string or an array of items", param="input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    builder = _Conversation(messages)
    for item in Place(given, "input").each():
        builder.add(item)
    if not given:
        raise BadRequest("input is empty; a response needs at least one item", param="input")
    return builder.messages


class _Conversation:
    """Reasoning, text and calls that follow one another are one turn of the assistant."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self._turn: Message | None = None
        self._readers: Mapping[str, Callable[[Place], None]] = {
            "message": self._message,
            "function_call": self._call,
            "function_call_output": self._output,
            "reasoning": self._reasoning,
        }

    def add(self, item: Place) -> None:
        """One item of the input."""
        kind = item.mapping().get("type") or "message"
        if kind == "item_reference":
            raise item.unsupported("type", _NO_STORE)
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise item.unsupported("type", f"use one of {', '.join(self._readers)}")
        reader(item)

    def _message(self, item: Place) -> None:
        role = item.text("role")
        if role == "assistant":
            turn = self._assistant()
            text = joined_text(item["content"], (*_TEXT_PARTS, "refusal"), "an answer has parts of text")
            turn["content"] = (turn["content"] or "") + text
            return
        if role not in ("user", "system", "developer"):
            raise item.wrong("role", "use user, system, developer or assistant")
        self._turn = None
        self.messages.append({"role": role, "content": _content(item["content"])})

    def _call(self, item: Place) -> None:
        function = {"name": item.text("name"), "arguments": item.text("arguments")}
        call = {"id": item.text("call_id"), "type": "function", "function": function}
        self._assistant().setdefault("tool_calls", []).append(call)

    def _output(self, item: Place) -> None:
        self._turn = None
        content = joined_text(item["output"], _TEXT_PARTS, "a tool's result is text here")
        self.messages.append({"role": "tool", "tool_call_id": item.text("call_id"), "content": content})

    def _reasoning(self, item: Place) -> None:
        if item.mapping().get("content") is None:
            if item.mapping().get("encrypted_content"):
                raise item.unsupported("encrypted_content", "only the server that made it can read it")
            return
        thought = "".join(part.text("text") for part in _reasoning_parts(item["content"]))
        self._assistant()["reasoning"] = thought

    def _assistant(self) -> Message:
        if self._turn is None:
            self._turn = {"role": "assistant", "content": None}
            self.messages.append(self._turn)
        return self._turn


def _content(place: Place) -> Any:
    """Text as one string; parts where there are images, which the engine takes or refuses."""
    if isinstance(place.value, str):
        return place.value
    parts = [_part(part) for part in place.each()]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Place) -> dict[str, Any]:
    kind = part.mapping().get("type")
    if kind in _TEXT_PARTS:
        return {"type": "text", "text": part.text("text")}
    if kind == "input_image":
        if part.mapping().get("file_id") is not None:
            raise part.unsupported("file_id", "no files are stored; send image_url")
        image = {"url": part.text("image_url")}
        if (detail := part.optional_text("detail")) is not None:
            image["detail"] = detail
        return {"type": "image_url", "image_url": image}
    raise part.unsupported("type", "use input_text or input_image")


def _reasoning_parts(place: Place) -> Iterator[Place]:
    for part in place.each():
        if part.mapping().get("type") not in _REASONING_PARTS:
            raise part.unsupported("type", "use reasoning_text")
        yield part
