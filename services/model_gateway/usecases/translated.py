"""A streamed chat reply on its way into another dialect: blocks of events in, blocks of events out."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import orjson

from model_gateway.domain.dialects.dialect import DialectEvent, DialectStream

_END = b"\n\n"
_DATA = b"data:"
_DONE = b"[DONE]"


async def translated(blocks: AsyncIterator[bytes], stream: DialectStream) -> AsyncIterator[bytes]:
    """`blocks` hold whole events, as EventStream passes them; an error event ends the stream."""
    yield _written(stream.begin())
    async for block in blocks:
        for chunk in _chunks(block):
            if isinstance(chunk.get("error"), Mapping):
                yield _written(stream.failed(chunk["error"]))
                return
            if events := stream.feed(chunk):
                yield _written(events)
    yield _written(stream.end())


def _chunks(block: bytes) -> Iterable[Mapping[str, Any]]:
    for event in block.split(_END):
        payload = event[len(_DATA) :].strip() if event.startswith(_DATA) else b""
        if payload and payload != _DONE:
            chunk = orjson.loads(payload)
            if isinstance(chunk, dict):
                yield chunk


def _written(events: Iterable[DialectEvent]) -> bytes:
    return b"".join(
        b"event: " + event.name.encode() + b"\ndata: " + orjson.dumps(event.data) + _END for event in events
    )
