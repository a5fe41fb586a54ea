"""Lines of bounded size over an asyncio transport, without a copy per read.

`asyncio.StreamReader` is not used: its `readuntil` drops a line that is too long, and takes three times as
long per line; an episode consists of hundreds of small lines.
"""

import asyncio
from collections import deque

from upcycle.environment.channel.frames import MAX_FRAME_BYTES, ChannelClosed, FrameTooLarge


class LineProtocol(asyncio.Protocol):
    """Splits the byte stream into lines. One reader at a time awaits `read_line`."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._partial = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._oversize = False
        self.closed = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._raw_sink: asyncio.Transport | None = None
        self._raw_source: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio's callback."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - stream sockets only
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """asyncio's callback."""
        if self._raw_sink is not None:
            self._raw_sink.write(data)
            return
        *lines, rest = data.split(b"\n")
        if lines:
            self._partial += lines[0]
            lines[0] = bytes(self._partial)
            self._partial.clear()
            self._lines.extend(lines)
        self._partial += rest
        if len(self._partial) > MAX_FRAME_BYTES and self.transport is not None:
            self._oversize = True
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """asyncio's callback: half-close ends the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's callback."""
        if not self.closed.done():
            self.closed.set_result(exc)
        if self._raw_sink is not None:
            self._raw_sink.close()
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        """asyncio's callback."""
        self._writable.clear()
        if self._raw_source is not None:
            self._raw_source.pause_reading()

    def resume_writing(self) -> None:
        """asyncio's callback."""
        self._writable.set()
        if self._raw_source is not None:
            self._raw_source.resume_reading()

    async def read_line(self) -> bytes:
        """The next line without its newline. Raises FrameTooLarge, or ChannelClosed at the end."""
        while not self._lines:
            if self._oversize:
                raise FrameTooLarge(len(self._partial))
            if self.closed.done():
                raise ChannelClosed("the control channel was closed by the other side")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        line = self._lines.popleft()
        if len(line) > MAX_FRAME_BYTES:
            raise FrameTooLarge(len(line))
        return line

    async def send(self, data: bytes) -> None:
        """Write, and wait while the other side is slow to read. Raises ChannelClosed."""
        if self.transport is None or self.closed.done():
            raise ChannelClosed("the control channel is closed")
        self.transport.write(data)
        if not self._writable.is_set():
            await self._writable.wait()

    def splice(self, other: "LineProtocol") -> None:
        """From now on every byte goes to the other connection, what was buffered first, as fast as it takes
        them.

        When one of the two ends, so does the other.
        """
        if self.transport is None or other.transport is None:
            raise ChannelClosed("a connection ended before it was spliced")
        self._raw_sink, other._raw_source = other.transport, self.transport
        rest = b"".join(line + b"\n" for line in self._lines) + bytes(self._partial)
        self._lines.clear()
        self._partial.clear()
        if rest:
            other.transport.write(rest)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None
