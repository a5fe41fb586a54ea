"""The network between two processes: one listening port for each process and each thing that it talks to.

A link passes bytes on to one of several servers (the next one where a connection is refused, as a service
address does that checks nothing but the port). It can be cut, silenced, slowed, or made to break uploads.
"""

import asyncio
import itertools
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from service_kit.ports import LOOPBACK

_CHUNK_BYTES: Final = 64 * 1024
_UPLOAD: Final = re.compile(rb"^PUT [^\r\n]* HTTP/1\.1\r\n", re.MULTILINE)
_PART: Final = re.compile(rb"^PUT [^\r\n]*partNumber=", re.MULTILINE)
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class LinkMode(Enum):
    """What a link does with what it is given."""

    OPEN = "open"
    CUT = "cut"
    """Every connection is reset, new ones at once."""
    SILENT = "silent"
    """Nothing arrives, nothing is refused, as behind a router that drops packets; sent on when it heals."""
    SLOW = "slow"
    """Every chunk waits for `delay_s`."""
    BREAKS_UPLOADS = "breaks_uploads"
    """An HTTP PUT of more than `after_bytes` is reset when so many bytes of it have passed."""


@dataclass(slots=True, eq=False)
class _Upload:
    """Bytes of the PUT under way on one connection."""

    sent: int = 0
    is_part: bool = False
    counts: bool = False

    def passes(self, data: bytes, after_bytes: int) -> bool:
        """Whether this chunk may pass; a PUT begins where its first line does."""
        head = _UPLOAD.search(data)
        if head is not None:
            length = _LENGTH.search(data, head.start())
            self.counts = length is not None and int(length[1]) > after_bytes
            self.is_part = _PART.search(data) is not None
            self.sent = len(data) - head.start()
        else:
            self.sent += len(data)
        return not self.counts or self.sent <= after_bytes


@dataclass(slots=True, eq=False)
class Link:
    """One address that one process uses for one dependency. A connection ends when either end closes it."""

    process: str
    dependency: str
    servers: Sequence[tuple[str, int]]
    """host and port of each replica."""
    mode: LinkMode = LinkMode.OPEN
    delay_s: float = 0.0
    after_bytes: int = 0
    broken_uploads: int = 0
    broken_parts: int = 0
    """Of them, parts of multipart uploads."""
    _socket: socket.socket = field(default_factory=lambda: _listening())
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _turn: "itertools.count[int]" = field(default_factory=itertools.count)
    _speaks: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def port(self) -> int:
        """Where the process connects to, on the loopback; taken from the start."""
        return int(self._socket.getsockname()[1])

    @property
    def address(self) -> str:
        """host:port"""
        return f"{LOOPBACK}:{self.port}"

    async def serve(self) -> None:
        """Begin to pass on."""
        self._speaks.set()
        self._server = await asyncio.start_server(self._connected, sock=self._socket)

    async def close(self) -> None:
        """Reset everything and stop listening."""
        self._reset()
        if self._server is not None:
            self._server.close()
        self._socket.close()

    def set(self, mode: LinkMode, *, delay_s: float = 0.0, after_bytes: int = 0) -> None:
        """Change what happens from the next byte on."""
        self.mode, self.delay_s, self.after_bytes = mode, delay_s, after_bytes
        if mode is LinkMode.SILENT:
            self._speaks.clear()
        else:
            self._speaks.set()
        if mode is LinkMode.CUT:
            self._reset()

    def _reset(self) -> None:
        for writer in self._writers:
            _abort(writer)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._speaks.wait()
            if self.mode is LinkMode.CUT:
                return
            await self._pass_on(reader, writer)
        except OSError:
            return  # one of the two ends is gone; the other is reset below
        finally:
            _abort(writer)
            self._writers.discard(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await self._connect()
        self._writers.add(back)
        pumps = [
            asyncio.create_task(self._pump(reader, back, _Upload())),
            asyncio.create_task(self._pump(there, writer, None)),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
            back.close()
            writer.close()  # what was written is still sent
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            _abort(back)
            self._writers.discard(back)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the server whose turn it is, else to the next that listens. Raises OSError."""
        first = next(self._turn)
        for number in range(len(self.servers)):
            host, port = self.servers[(first + number) % len(self.servers)]
            with suppress(ConnectionRefusedError):
                return await asyncio.open_connection(host, port)
        raise ConnectionRefusedError(f"nothing listens behind {self.dependency} of {self.process}")

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upload: _Upload | None
    ) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if self.mode is LinkMode.SLOW:
                await asyncio.sleep(self.delay_s)
            await self._speaks.wait()
            if upload is not None and self.mode is LinkMode.BREAKS_UPLOADS:
                self._break(data, upload)
            writer.write(data)
            await writer.drain()

    def _break(self, data: bytes, upload: _Upload) -> None:
        if not upload.passes(data, self.after_bytes):
            self.broken_uploads += 1
            self.broken_parts += upload.is_part
            raise ConnectionResetError("in the middle of an upload, as planned")


def _abort(writer: asyncio.StreamWriter) -> None:
    """With a reset. One that is being closed sends what was written first."""
    if writer.transport.is_closing():
        return
    opened = writer.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _listening() -> socket.socket:
    listening = socket.create_server((LOOPBACK, 0), backlog=256)
    listening.setblocking(False)
    return listening


class Links:
    """Every link of a platform, by process and dependency."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], list[Link]] = {}

    def make(self, process: str, dependency: str, servers: Sequence[tuple[str, int]]) -> Link:
        """One more address; a dependency with several addresses (NATS servers) has several links."""
        link = Link(process, dependency, tuple(servers))
        self._links.setdefault((process, dependency), []).append(link)
        return link

    def of(self, process: str, dependency: str) -> Sequence[Link]:
        """All links of a process to a dependency."""
        return self._links[process, dependency]

    async def serve(self) -> None:
        """Begin to pass on, everywhere."""
        await asyncio.gather(*(link.serve() for link in self._all()))

    async def close(self) -> None:
        """Stop listening, everywhere."""
        await asyncio.gather(*(link.close() for link in self._all()))

    def broken(self) -> Mapping[str, int]:
        """How many uploads were broken, and how many of them were parts of multipart uploads."""
        return {
            "uploads": sum(link.broken_uploads for link in self._all()),
            "parts": sum(link.broken_parts for link in self._all()),
        }

    def _all(self) -> list[Link]:
        return [link for links in self._links.values() for link in links]
