"""Kept HTTP/1.1 connections to engines, one request at a time on each.

A general client costs a request more than everything else that the gateway does for it. What engines need is
less: no redirects, cookies or encodings, and heads that are the same for every request.
"""

import asyncio
from typing import Final, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

KEPT_S: Final = 30.0
"""How long a connection without a request is kept."""
MAX_HEAD_BYTES: Final = 64 << 10
MAX_UNREAD_BYTES: Final = 256 << 10
"""Of an answer; while so much waits to be passed on, the engine is not read."""
_FIRST_FINAL: Final = 200


class AnswerLost(Exception):
    """The answer does not come, or not whole."""


class NothingReceived(AnswerLost):
    """The connection ended before a byte of the answer: a kept one may have been closed while the request
    was on its way."""


class Answer:
    """What an engine answers to one request, as far as it has arrived."""

    __slots__ = ("_connection", "_has_head", "_is_whole", "_lost", "_news", "_parts", "_unread", "status")

    def __init__(self, connection: "EngineConnection") -> None:
        self.status = 0
        self._connection = connection
        self._parts: list[bytes] = []
        self._unread = 0
        self._has_head = False
        self._is_whole = False
        self._lost: AnswerLost | None = None
        self._news: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Returns once `status` is known. Raises AnswerLost."""
        while not self._has_head:
            await self._wait()

    async def body(self) -> bytes:
        """All of it. Raises AnswerLost."""
        parts: list[bytes] = []
        while not self._is_whole:
            parts.append(self._take())
            await self._wait()
        return b"".join([*parts, self._take()])

    async def part(self) -> bytes:
        """What has arrived since, at least a byte; nothing at the end. Raises AnswerLost."""
        while not self._unread and not self._is_whole:
            await self._wait()
        return self._take()

    def close(self) -> None:
        """Give up what has not arrived; the engine sees a disconnect and aborts."""
        if not self._is_whole and self._lost is None:
            self._connection.abort()

    def began(self, status: int) -> None:
        """Its head is here."""
        self.status, self._has_head = status, True
        self._wake()

    def came(self, part: bytes) -> int:
        """More of its body. How much waits to be read."""
        self._parts.append(part)
        self._unread += len(part)
        self._wake()
        return self._unread

    def ended(self) -> None:
        """All of it is here."""
        self._is_whole = True
        self._wake()

    def broke(self, why: AnswerLost) -> None:
        """No more will come."""
        self._lost = why
        self._wake()

    def _take(self) -> bytes:
        parts, self._parts, self._unread = self._parts, [], 0
        if not self._is_whole:
            self._connection.resume()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _wait(self) -> None:
        if self._lost is not None:
            raise self._lost
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class EngineConnection(asyncio.Protocol):
    """One connection. `kept` has those without a request; it takes itself out when it ends."""

    def __init__(self, kept: "list[EngineConnection]") -> None:
        self._loop = asyncio.get_running_loop()
        self._kept = kept
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._silence_s = self._received_at = self._ends_at = self._looks_at = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._head_bytes = self._unsent = 0
        self._is_paused = self._is_interim = self._is_bounded = self._may_be_kept = False

    def ask(self, request: bytes, *, silence_s: float, timeout_s: float) -> Answer:
        """Send a request. silence_s: after which the engine is lost; timeout_s: for the whole answer."""
        if self._transport is None:
            raise RuntimeError("a connection is asked that is not open")
        answer = self._answer = Answer(self)
        now = self._loop.time()
        self._received_at, self._silence_s, self._ends_at = now, silence_s, now + timeout_s
        self._head_bytes = self._unsent = 0
        self._is_bounded = self._is_interim = self._may_be_kept = False
        self._look_at(min(now + silence_s, self._ends_at))
        self._transport.write(request)
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own

    def data_received(self, data: bytes) -> None:
        """More of the answer. Bytes without a request end the connection."""
        if self._parser is None or self._answer is None:
            self._end("the engine sent bytes without a request")
            return
        self._received_at = self._loop.time()
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._end(f"the engine does not speak HTTP/1.1: {error}")
            return
        if self._answer is not None and not self._answer.status and self._head_bytes > MAX_HEAD_BYTES:
            self._end(f"the head of the engine's answer has more than {MAX_HEAD_BYTES} bytes")

    def connection_lost(self, exc: BaseException | None) -> None:
        """The engine closed it, or we did."""
        answer = self._answer
        if answer is not None and answer.status and not self._is_bounded and exc is None:
            self._answer = None
            answer.ended()  # a body without a length ends with its connection
        elif answer is not None and not self._head_bytes:
            self._answer = None
            answer.broke(NothingReceived(_words(exc)))
        self._end(_words(exc))

    def pause_writing(self) -> None:
        """Much of the request waits for the engine to read it."""
        if self._transport is not None:
            self._unsent = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """The engine has read it, all but a little."""
        self._unsent, self._received_at = 0, self._loop.time()

    def on_message_begin(self) -> None:
        """Of an answer; a second one to the same request is none of ours."""
        if self._answer is None:
            self._end("the engine answered twice")

    def on_header(self, name: bytes, _: bytes) -> None:
        """Only what says where the body ends is of interest."""
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._is_bounded = True

    def on_headers_complete(self) -> None:
        """The head is here."""
        if self._parser is None or self._answer is None:
            return
        status = self._parser.get_status_code()
        self._is_interim = status < _FIRST_FINAL
        if not self._is_interim:
            self._may_be_kept = self._parser.should_keep_alive()
            self._answer.began(status)

    def on_body(self, part: bytes) -> None:
        """More of the body."""
        if self._answer is None or self._transport is None:
            return
        if self._answer.came(part) > MAX_UNREAD_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is whole: the connection is free for the next request."""
        answer = self._answer
        if answer is None or self._is_interim:
            return
        self._answer = None
        answer.ended()
        self.resume()
        if not self._may_be_kept or self._transport is None or self._transport.get_write_buffer_size():
            self._end("")  # answered before it was read: the rest of the request may never be
            return
        self._received_at = self._loop.time()
        self._kept.append(self)
        self._look_at(self._received_at + KEPT_S)

    def resume(self) -> None:
        """What had arrived was read."""
        if self._is_paused and self._transport is not None:
            self._is_paused, self._received_at = False, self._loop.time()
            self._transport.resume_reading()

    def abort(self) -> None:
        """End it at once."""
        self._end("the gateway gave it up")

    def _end(self, why: str) -> None:
        if self in self._kept:
            self._kept.remove(self)
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.broke(AnswerLost(why))
        if self._look is not None:
            self._look.cancel()
        transport, self._transport = self._transport, None
        self._look = self._parser = None
        if transport is not None:
            transport.abort()

    def _look_at(self, moment: float) -> None:
        """One timer looks after many requests: it is moved only where it would fire too late."""
        if self._look is not None:
            if self._looks_at <= moment:
                return
            self._look.cancel()
        self._looks_at = moment
        self._look = self._loop.call_at(moment, self._looked)

    def _looked(self) -> None:
        self._look, now = None, self._loop.time()
        until, why = self._deadline(now)
        if now >= until:
            self._end(why)
        else:
            self._look_at(until)

    def _deadline(self, now: float) -> tuple[float, str]:
        """When it ends unless something is received, and why."""
        if self._answer is None:
            return self._received_at + KEPT_S, ""
        if self._unsent and self._transport is not None:
            before, self._unsent = self._unsent, self._transport.get_write_buffer_size()
            if self._unsent < before:
                self._received_at = now  # it reads, so it is not silent
        silent_at = (now if self._is_paused else self._received_at) + self._silence_s
        if silent_at < self._ends_at:
            return silent_at, f"it sent nothing for {self._silence_s:g} s"
        return self._ends_at, "its answer was not whole in the time that a request may take"


def _words(error: BaseException | None) -> str:
    return "the engine closed the connection" if error is None else f"{type(error).__name__}: {error}"
