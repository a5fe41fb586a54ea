"""Anthropic's Messages API: POST /v1/messages."""

import json
from collections.abc import Mapping
from typing import Any, Final

from upcycle.external.dialects import Answered, Kept, NoTurn, function_of, text_in, tokens_of
from upcycle.harness.chat import ChatReply, Messages
from upcycle.harness.parsing import AssistantTurn, read_message
from upcycle.images import images_in

VERSION: Final = "2023-06-01"
_CUT: Final = ("max_tokens", "model_context_window_exceeded")
_PROMPT_PARTS: Final = ("cache_creation_input_tokens", "cache_read_input_tokens")


class AnthropicMessages:
    """Of one model. A turn's blocks go back as they came, because reasoning is signed."""

    path = "/v1/messages"

    def __init__(self, model: str) -> None:
        self.model = model

    @property
    def model_path(self) -> str:
        """Of this model."""
        return f"/v1/models/{self.model}"

    def body(
        self, messages: Messages, tools: Messages, max_tokens: int, sampling: Mapping[str, float], kept: Kept
    ) -> dict[str, Any]:
        """System messages stand beside the conversation; roles alternate."""
        system = "\n\n".join(text_in(one["content"]) for one in messages if one["role"] == "system")
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "messages": _turns(messages, kept),
            **sampling,
        }
        if system:
            body["system"] = system
        if tools:
            body["tools"] = [_tool(function_of(tool)) for tool in tools]
        return body

    def learn(self, refusal: str) -> None:
        """There is one form."""

    def read(self, answer: Any) -> Answered:
        """Raises NoTurn."""
        try:
            blocks = [dict(block) for block in answer["content"]]
            usage = answer.get("usage") or {}
            was_cut = answer.get("stop_reason") in _CUT
            said = _said(blocks)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise NoTurn(f"no message: {answer!s:.300}") from error
        tokens = tokens_of(usage, "input_tokens", "output_tokens")
        cached = tokens_of(usage, "", *_PROMPT_PARTS).completion
        tokens = type(tokens)(tokens.prompt + cached, tokens.completion)
        reply = ChatReply(said, was_cut, tokens.prompt + tokens.completion)
        return Answered(reply, tokens, [] if said.parse_error else blocks)

    def models_in(self, answer: Any) -> list[str]:
        """It is about this model alone."""
        return []


def _said(blocks: list[dict[str, Any]]) -> AssistantTurn:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    rows = [
        {"function": {"name": block.get("name"), "arguments": block.get("input")}}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return read_message({"content": text, "tool_calls": rows})


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function["parameters"],
    }


def _turns(messages: Messages, kept: Kept) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    ids: dict[str, str] = {}
    for position, message in enumerate(messages):
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = kept.get(position) or _blocks(message, ids)
        ids |= _ids(message, blocks)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] = [*turns[-1]["content"], *blocks]
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _ids(message: Mapping[str, Any], blocks: list[Any]) -> dict[str, str]:
    """The server's id by the harness's, of the calls of a turn."""
    ours = [call["id"] for call in message.get("tool_calls") or ()]
    return dict(zip(ours, (block["id"] for block in blocks if block["type"] == "tool_use"), strict=False))


def _blocks(message: Mapping[str, Any], ids: Mapping[str, str]) -> list[dict[str, Any]]:
    text = text_in(message["content"])
    rows = [image.to_row() for image in images_in(message["content"])]
    seen = [{"type": "image", "source": {"type": "base64", **row}} for row in rows]
    if message["role"] == "tool":
        call_id = message["tool_call_id"]
        shown = [{"type": "text", "text": text}, *seen] if seen else text
        return [{"type": "tool_result", "tool_use_id": ids.get(call_id, call_id), "content": shown}]
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls") or ()
    ]
    said = [{"type": "text", "text": text}] if text.strip() or not calls else []
    return [*said, *seen, *calls]
