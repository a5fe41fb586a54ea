"""Gemini's API: POST /v1beta/models/MODEL:generateContent."""

import json
from collections.abc import Mapping
from typing import Any, Final

from upcycle.external.dialects import Answered, Kept, NoTurn, function_of, text_in, tokens_of
from upcycle.harness.chat import ChatReply, Messages
from upcycle.harness.parsing import AssistantTurn, read_message
from upcycle.images import images_in

_CUT: Final = "MAX_TOKENS"
_MALFORMED: Final = "MALFORMED_FUNCTION_CALL"


class GeminiContent:
    """Of one model. A turn's parts go back as they came, because their thoughts are signed."""

    def __init__(self, model: str) -> None:
        self.model = model

    @property
    def path(self) -> str:
        """Of this model."""
        return f"{self.model_path}:generateContent"

    @property
    def model_path(self) -> str:
        """Of this model."""
        return f"/v1beta/models/{self.model}"

    def body(
        self, messages: Messages, tools: Messages, max_tokens: int, sampling: Mapping[str, float], kept: Kept
    ) -> dict[str, Any]:
        """System messages stand beside the conversation; roles alternate."""
        system = "\n\n".join(text_in(one["content"]) for one in messages if one["role"] == "system")
        names = {"temperature": "temperature", "top_p": "topP"}
        config = {names[name]: value for name, value in sampling.items()}
        body: dict[str, Any] = {
            "contents": _contents(messages, kept),
            "generationConfig": {"maxOutputTokens": max_tokens, **config},
        }
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        if tools:
            body["tools"] = [{"functionDeclarations": [_declared(function_of(tool)) for tool in tools]}]
        return body

    def learn(self, refusal: str) -> None:
        """There is one form."""

    def read(self, answer: Any) -> Answered:
        """Raises NoTurn, also for a prompt that the server blocks."""
        try:
            blocked = (answer.get("promptFeedback") or {}).get("blockReason")
            if blocked and not answer.get("candidates"):
                raise NoTurn(f"no turn: it blocked the prompt ({blocked})")
            candidate, usage = answer["candidates"][0], answer.get("usageMetadata") or {}
            reason = candidate.get("finishReason")
            parts = [dict(part) for part in (candidate.get("content") or {}).get("parts") or ()]
            said = _said(parts, reason)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise NoTurn(f"no content: {answer!s:.300}") from error
        tokens = tokens_of(usage, "promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
        reply = ChatReply(said, reason == _CUT, tokens.prompt + tokens.completion)
        return Answered(reply, tokens, [] if said.parse_error else parts)

    def models_in(self, answer: Any) -> list[str]:
        """It is about this model alone."""
        return []


def _said(parts: list[dict[str, Any]], reason: Any) -> AssistantTurn:
    text = "".join(str(part["text"]) for part in parts if "text" in part and not part.get("thought"))
    if not parts and reason not in ("STOP", _CUT):
        if reason == _MALFORMED:
            return AssistantTurn(text, parse_error="malformed function call")
        raise NoTurn(f"no turn: it stopped with {reason}")
    rows = [
        {
            "function": {
                "name": part["functionCall"].get("name"),
                "arguments": part["functionCall"].get("args"),
            }
        }
        for part in parts
        if "functionCall" in part
    ]
    return read_message({"content": text, "tool_calls": rows})


def _declared(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": function["name"],
        "description": function["description"],
        "parametersJsonSchema": function["parameters"],
    }


def _contents(messages: Messages, kept: Kept) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for position, message in enumerate(messages):
        if message["role"] == "system":
            continue
        role = "model" if message["role"] == "assistant" else "user"
        parts = kept.get(position) or _parts(message, calls)
        ours = [call["id"] for call in message.get("tool_calls") or ()]
        theirs = [part["functionCall"] for part in parts if "functionCall" in part]
        calls |= dict(zip(ours, theirs, strict=False))
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] = [*contents[-1]["parts"], *parts]
        else:
            contents.append({"role": role, "parts": parts})
    return contents


def _parts(message: Mapping[str, Any], calls: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    text = text_in(message["content"])
    rows = [image.to_row() for image in images_in(message["content"])]
    seen = [{"inlineData": {"mimeType": row["media_type"], "data": row["data"]}} for row in rows]
    if message["role"] == "tool":
        called = calls[message["tool_call_id"]]
        answered = {"name": called["name"], "response": {"result": text}}
        response = {**answered, **({"id": called["id"]} if "id" in called else {})}
        return [{"functionResponse": response}, *seen]
    said = [{"text": text}] if text or not message.get("tool_calls") else []
    asked = [
        {
            "functionCall": {
                "name": call["function"]["name"],
                "args": json.loads(call["function"]["arguments"]),
            }
        }
        for call in message.get("tool_calls") or ()
    ]
    return [*said, *seen, *asked]
