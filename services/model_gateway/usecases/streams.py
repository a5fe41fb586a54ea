"""Passes server-sent events through: only whole ones, and parses only those that hold facts it needs."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson

from model_gateway.domain.calls import CompletionCall
from model_gateway.domain.errors import EngineLost, GatewayError
from model_gateway.domain.replies import (
    TokenUsage,
    finish_reasons,
    usage_of,
    versions_in,
    with_ids_in_both_places,
)
from model_gateway.ports import EngineReply

_END = b"\n\n"
_DATA = b"data:"
_DONE = b"[DONE]"
_TELLING = (b'"weight_versions"', b'"finish_reason":"', b'"finish_reason": "', b'"error"')
_MAX_EVENT_BYTES = 16 << 20


class EventStream:
    """One streamed reply, and what it told so far."""

    def __init__(self, call: CompletionCall, reply: EngineReply) -> None:
        self.usage = TokenUsage()
        self.versions: list[int] = []
        self.finish_reasons: list[str] = []
        self.is_done = False
        self._call = call
        self._chunks = reply.chunks()
        self._left = b""

    async def first(self) -> bytes:
        """The first block of events. Raises EngineLost when the engine was lost before it."""
        async for chunk in self._chunks:
            if block := self._pass(chunk):
                return block
        if not self.is_done:
            raise EngineLost("the engine ended its stream before the first event")
        return b""

    async def rest(self) -> AsyncIterator[bytes]:
        """Blocks of whole events until the end. Raises EngineLost when the stream is cut."""
        async for chunk in self._chunks:
            if block := self._pass(chunk):
                yield block
        if not self.is_done:
            raise EngineLost("the engine ended its stream in the middle")

    def _pass(self, chunk: bytes) -> bytes:
        """The whole events that `chunk` completes, as they go to the client."""
        data = self._left + chunk if self._left else chunk
        end = data.rfind(_END)
        if end < 0:
            if len(data) > _MAX_EVENT_BYTES:
                raise EngineLost(f"the engine sent an event of more than {_MAX_EVENT_BYTES} bytes")
            self._left = data
            return b""
        whole, self._left = data[: end + 2], data[end + 2 :]
        if not self._needs_a_look(whole):
            return whole
        return b"".join(self._looked_at(whole))

    def _needs_a_look(self, block: bytes) -> bool:
        return (
            self._call.return_token_ids
            or _DONE in block
            or (b'"usage":' in block and block.count(b'"usage":') > block.count(b'"usage":null'))
            or any(mark in block for mark in _TELLING)
        )

    def _looked_at(self, block: bytes) -> Iterator[bytes]:
        for event in block.split(_END):
            if not event.startswith(_DATA):
                if event:
                    yield event + _END
                continue
            if not self._needs_a_look(event):
                yield event + _END
                continue
            payload = event[len(_DATA) :].strip()
            if payload == _DONE:
                self.is_done = True
                yield event + _END
                continue
            passed = self._chunk(event, _json(payload))
            if passed is not None:
                yield passed + _END

    def _chunk(self, event: bytes, chunk: Any) -> bytes | None:
        """The event to pass on; None for the usage that only we asked for."""
        if not isinstance(chunk, dict):
            return event
        if (usage := usage_of(chunk)) is not None:
            self.usage = usage
        self.versions += versions_in(chunk)
        self.finish_reasons += finish_reasons(chunk)
        if chunk.get("error"):
            self.is_done = True
        if not chunk.get("choices") and usage is not None and not self._call.wants_usage:
            return None
        if self._call.return_token_ids and b"prompt_token_ids" in event:
            has_ids = with_ids_in_both_places(chunk)
            return b"data: " + orjson.dumps(chunk) if has_ids else event
        return event


def _json(payload: bytes) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise EngineLost(f"the engine sent an event that is not JSON: {error}") from error


def error_event(error: GatewayError) -> bytes:
    """The last event of a stream that cannot go on; OpenAI's clients raise it."""
    body = {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}
    return b"data: " + orjson.dumps(body) + _END
