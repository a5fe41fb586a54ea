"""A message of Anthropic's, whole or as events, as a reply of the chat route."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from model_gateway.domain.upstream.errors import UpstreamFailed
from model_gateway.domain.upstream.providers import UpstreamModel
from model_gateway.domain.upstream.refusals import without_key
from model_gateway.domain.upstream.sse import ServerEvent
from model_gateway.domain.upstream.wire import Body

_REASONS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def reply(said: Mapping[str, Any], model: UpstreamModel) -> Body:
    """Raises ValueError for what is no message."""
    blocks = said.get("content")
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise ValueError("answered without content")
    message: Body = {"role": "assistant", "content": _joined(blocks, "text") or None}
    if thought := _joined(blocks, "thinking"):
        message["reasoning"] = thought
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    if calls:
        message["tool_calls"] = [_call(block) for block in calls]
    choice = {"index": 0, "message": message, "logprobs": None, **_ending(said)}
    return {
        "id": str(said.get("id") or ""),
        "object": "chat.completion",
        "created": 0,
        "model": str(said.get("model") or model.served_name),
        "choices": [choice],
        "usage": usage_of(said.get("usage") or {}),
    }


def usage_of(said: Mapping[str, Any]) -> Body:
    """Anthropic counts what came from the cache, or went there, beside the input."""
    cached = _count(said, "cache_read_input_tokens")
    prompt = _count(said, "input_tokens") + cached + _count(said, "cache_creation_input_tokens")
    completion = _count(said, "output_tokens")
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _count(said: Mapping[str, Any], name: str) -> int:
    value = said.get(name)
    return value if isinstance(value, int) else 0


def _joined(blocks: list[Any], kind: str) -> str:
    return "".join(str(block.get(kind) or "") for block in blocks if block.get("type") == kind)


def _call(block: Mapping[str, Any]) -> Body:
    arguments = orjson.dumps(block.get("input") or {}).decode()
    return {
        "id": str(block.get("id") or ""),
        "type": "function",
        "function": {"name": str(block.get("name") or ""), "arguments": arguments},
    }


def _ending(said: Mapping[str, Any]) -> Body:
    """Raises ValueError for a reason that is none."""
    reason = said.get("stop_reason")
    if reason not in _REASONS:
        raise ValueError("ended the answer with a stop_reason that is none")
    stopped_by = said.get("stop_sequence") if reason == "stop_sequence" else None
    return {"finish_reason": _REASONS[reason], "stop_reason": stopped_by}


class AnthropicStream:
    """Events in, chunks out; the last chunk has the usage."""

    def __init__(self, model: UpstreamModel, created_s: int) -> None:
        self._model = model
        self._head: Body = {"object": "chat.completion.chunk", "created": created_s}
        self._usage: dict[str, Any] = {}
        self._calls: dict[int, int] = {}
        self._is_done = False

    @property
    def is_done(self) -> bool:
        """Whether message_stop was seen."""
        return self._is_done

    @property
    def is_closed(self) -> bool:
        """The same: nothing follows it."""
        return self._is_done

    def feed(self, event: ServerEvent) -> list[Body]:
        """Raises ValueError, UpstreamFailed."""
        said = orjson.loads(event.data)
        if not isinstance(said, dict):
            raise ValueError(f"sent an event that is a JSON {type(said).__name__}")
        kind = said.get("type")
        if kind == "error":
            provider, error = self._model.provider, said.get("error") or {}
            why = without_key(str(error.get("message")), provider)
            raise UpstreamFailed(f"provider {provider.name!r} broke its answer off: {why}")
        if kind == "message_start":
            return self._started(said.get("message") or {})
        if kind == "content_block_start":
            return self._block(said.get("index"), said.get("content_block") or {})
        if kind == "content_block_delta":
            return self._delta(said.get("index"), said.get("delta") or {})
        if kind == "message_delta":
            self._usage |= _given(said.get("usage"))
            return [self._chunk({}, **_ending(said.get("delta") or {}))]
        if kind == "message_stop":
            self._is_done = True
            return [{**self._head, "choices": [], "usage": usage_of(self._usage)}]
        return []  # ping, content_block_stop, and kinds to come

    def _started(self, message: Mapping[str, Any]) -> list[Body]:
        self._head |= {
            "id": str(message.get("id") or ""),
            "model": str(message.get("model") or self._model.served_name),
        }
        self._usage |= _given(message.get("usage"))
        return [self._chunk({"role": "assistant", "content": ""})]

    def _block(self, index: Any, block: Mapping[str, Any]) -> list[Body]:
        if block.get("type") == "text" and block.get("text"):
            return [self._chunk({"content": block["text"]})]
        if block.get("type") != "tool_use":
            return []
        place = self._calls.setdefault(index, len(self._calls))
        function = {"name": str(block.get("name") or ""), "arguments": ""}
        call = {"index": place, "id": str(block.get("id") or ""), "type": "function", "function": function}
        return [self._chunk({"tool_calls": [call]})]

    def _delta(self, index: Any, delta: Mapping[str, Any]) -> list[Body]:
        kind = delta.get("type")
        if kind == "text_delta":
            return [self._chunk({"content": str(delta.get("text") or "")})]
        if kind == "thinking_delta":
            return [self._chunk({"reasoning": str(delta.get("thinking") or "")})]
        if kind == "input_json_delta" and index in self._calls:
            arguments = {"arguments": str(delta.get("partial_json") or "")}
            return [self._chunk({"tool_calls": [{"index": self._calls[index], "function": arguments}]})]
        return []

    def _chunk(self, delta: Body, finish_reason: str | None = None, stop_reason: Any = None) -> Body:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "stop_reason": stop_reason}
        return {**self._head, "choices": [choice]}


def _given(usage: Any) -> Mapping[str, Any]:
    """The counts that an event has; a later one completes an earlier one."""
    return (
        {name: value for name, value in usage.items() if value is not None} if isinstance(usage, dict) else {}
    )
