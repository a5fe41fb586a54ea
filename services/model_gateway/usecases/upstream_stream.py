"""A provider's stream as the events that an engine would send, so that what follows knows one kind."""

from collections.abc import AsyncIterator, Iterator

import orjson

from model_gateway.adapters.upstream_http import UpstreamReply
from model_gateway.domain.upstream.errors import UpstreamFailed
from model_gateway.domain.upstream.estimates import characters_of
from model_gateway.domain.upstream.providers import Provider
from model_gateway.domain.upstream.refusals import unreadable
from model_gateway.domain.upstream.shapes import check_choices
from model_gateway.domain.upstream.sse import EventTooLarge, ServerEvent, SseReader
from model_gateway.domain.upstream.wire import ReplyStream


class UpstreamEvents:
    """`ports.EngineReply` over a provider's stream."""

    status = 200
    content_type = "text/event-stream"

    def __init__(self, provider: Provider, reply: UpstreamReply, stream: ReplyStream) -> None:
        self._provider = provider
        self._reply = reply
        self._stream = stream
        self.characters = 0
        """Of the answer so far."""

    async def read(self) -> bytes:
        """All of it. Raises UpstreamFailed."""
        return b"".join([block async for block in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        """As they arrive. Raises UpstreamFailed where the answer is cut, or cannot be read."""
        reader = SseReader()
        async for piece in self._reply.pieces():
            if block := b"".join(self._written(reader, piece)):
                yield block
            if self._stream.is_closed:
                break
        if not self._stream.is_done:
            raise UpstreamFailed(f"provider {self._provider.name!r} ended its answer in the middle")
        yield b"data: [DONE]\n\n"

    def close(self) -> None:
        """Give up; the provider sees a disconnect."""
        self._reply.close()

    def _written(self, reader: SseReader, piece: bytes) -> Iterator[bytes]:
        try:
            for event in reader.feed(piece):
                yield from self._event(event)
        except EventTooLarge as error:
            raise UpstreamFailed(f"provider {self._provider.name!r} {error}") from error

    def _event(self, event: ServerEvent) -> Iterator[bytes]:
        try:
            chunks = self._stream.feed(event)
            for chunk in chunks:
                check_choices(chunk)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise UpstreamFailed(unreadable("an event", error, event.data, self._provider)) from error
        for chunk in chunks:
            self.characters += characters_of(chunk)
            yield b"data: " + orjson.dumps(chunk) + b"\n\n"
