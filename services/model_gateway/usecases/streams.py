"""Passes server-sent events through: only whole ones, and parses only those that hold facts it needs."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import orjson

from model_gateway.domain.calls import ApiRoute, CompletionCall
from model_gateway.domain.errors import EngineLost, GatewayError
from model_gateway.domain.replies import (
    TokenUsage,
    counted_usage,
    finish_reasons,
    names_version,
    usage_of,
    versions_in,
    with_ids_in_both_places,
)
from model_gateway.domain.sampled_answers import AnswerCollector, without_unasked
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
        self.answers = AnswerCollector() if call.recorded else None
        """What was sampled, of a recorded call."""
        self._call = call
        self._chunks = reply.chunks()
        self._left: list[bytes] = []
        self._left_bytes = 0

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
        is_cut = bool(self._left) and self._left[-1].endswith(b"\n") and chunk.startswith(b"\n")
        if _END not in chunk and not is_cut:
            self._leave(chunk)
            return b""
        data = b"".join([*self._left, chunk]) if self._left else chunk
        end = data.rfind(_END)
        whole, self._left, self._left_bytes = data[: end + 2], [], 0
        self._leave(data[end + 2 :])
        if not self._needs_a_look(whole):
            return whole
        return b"".join(self._looked_at(whole))

    def _leave(self, part: bytes) -> None:
        """Of an event that is not whole. It is put together once, however many parts it comes in."""
        if part:
            self._left.append(part)
            self._left_bytes += len(part)
        if self._left_bytes > _MAX_EVENT_BYTES:
            raise EngineLost(f"the engine sent an event of more than {_MAX_EVENT_BYTES} bytes")

    def _needs_a_look(self, block: bytes) -> bool:
        return (
            self._call.recorded
            or self._call.target.version is not None
            or self._call.return_token_ids
            or self._call.route is ApiRoute.GENERATE  # has no usage of its own: its ids are counted
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
        """The event to pass on; None for what only we asked for."""
        if not isinstance(chunk, dict):
            return event
        usage = usage_of(chunk)
        self._count(chunk, usage)
        self.versions += versions_in(chunk)
        self.finish_reasons += finish_reasons(chunk)
        if chunk.get("error"):
            self.is_done = True
        if not chunk.get("choices") and chunk.get("usage") is not None and not self._call.wants_usage:
            return None
        has_changed = names_version(self._call, chunk)
        if self.answers is not None:
            self.answers.add(chunk)
            has_changed = True
            if not without_unasked(self._call, chunk, streamed=True):
                return None
        if self._call.return_token_ids and b"prompt_token_ids" in event:
            has_changed = with_ids_in_both_places(chunk) or has_changed
        return b"data: " + orjson.dumps(chunk) if has_changed else event

    def _count(self, chunk: dict[str, Any], said: TokenUsage | None) -> None:
        if said is not None:
            self.usage = said
        elif self._call.route is ApiRoute.GENERATE:
            more, so_far = counted_usage(self._call, chunk), self.usage.completion_tokens
            self.usage = replace(more, completion_tokens=so_far + more.completion_tokens)


def _json(payload: bytes) -> Any:
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise EngineLost(f"the engine sent an event that is not JSON: {error}") from error


def error_event(error: GatewayError) -> bytes:
    """The last event of a stream that cannot go on; OpenAI's clients raise it."""
    body = {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}
    return b"data: " + orjson.dumps(body) + _END
