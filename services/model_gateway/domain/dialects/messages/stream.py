"""The chunks of a streamed chat reply as the events of a streamed message."""

from collections.abc import Mapping
from typing import Any

from model_gateway.domain.dialects.dialect import Asked, Body, DialectEvent
from model_gateway.domain.dialects.messages.reply import (
    ending,
    message_body,
    text_block,
    thinking_block,
    tool_block,
    usage_body,
)
from model_gateway.domain.dialects.replies import Usage, calls_in, reasoning_in, usage_in
from model_gateway.domain.errors import BadReply

_TEXT = "text"
_THINKING = "thinking"


class MessageStream:
    """One streamed message. Blocks come one after the other: a new one closes the one before."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._index = -1
        self._open: Any = None  # `text`, `thinking`, or the index of the call; None: no block is open
        self._usage = Usage()
        self._finish_reason: Any = None
        self._stopped_by: Any = None

    def begin(self) -> list[DialectEvent]:
        """message_start. The engine counts tokens at the end, so message_delta has the usage."""
        return [_event("message_start", message=message_body(self._asked, []))]

    def feed(self, chunk: Mapping[str, Any]) -> list[DialectEvent]:
        """What a chunk adds."""
        self._usage = usage_in(chunk) or self._usage
        found: list[DialectEvent] = []
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if thought := reasoning_in(delta):
                found += self._in_block(_THINKING, thinking_block(""))
                found.append(self._delta({"type": "thinking_delta", "thinking": thought}))
            if text := delta.get("content"):
                found += self._in_block(_TEXT, text_block(""))
                found.append(self._delta({"type": "text_delta", "text": text}))
            for call in calls_in(delta):
                found += self._call(call)
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            self._stopped_by = choice.get("stop_reason") or self._stopped_by
        return found

    def end(self) -> list[DialectEvent]:
        """The last block closed, message_delta with reason and usage, message_stop."""
        try:
            ended = ending(self._finish_reason, self._stopped_by)
        except BadReply as error:
            return self.failed({"message": error.message})
        delta = _event("message_delta", delta=ended, usage=usage_body(self._usage))
        return [*self._close(), delta, _event("message_stop")]

    def failed(self, error: Mapping[str, Any]) -> list[DialectEvent]:
        """`error`, which clients raise."""
        said = {"type": "api_error", "message": str(error.get("message"))}
        return [_event("error", error=said, request_id=self._asked.request_id)]

    def _call(self, call: Mapping[str, Any]) -> list[DialectEvent]:
        found = self._in_block(call.get("index"), tool_block(call, {}))
        if arguments := (call.get("function") or {}).get("arguments"):
            found.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        return found

    def _in_block(self, key: Any, block: Body) -> list[DialectEvent]:
        """Nothing where that block is open; else the one before closed, and it opened."""
        if self._open is not None and self._open == key:
            return []
        found = self._close()
        self._open = key
        self._index += 1
        return [*found, _event("content_block_start", index=self._index, content_block=block)]

    def _close(self) -> list[DialectEvent]:
        if self._open is None:
            return []
        self._open = None
        return [_event("content_block_stop", index=self._index)]

    def _delta(self, delta: Body) -> DialectEvent:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(name: str, **data: Any) -> DialectEvent:
    return DialectEvent(name, {"type": name, **data})
