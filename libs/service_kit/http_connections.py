"""Connections of one HTTP port: who has how many, and an end to those that keep it waiting.

At a limit the connection that was silent longest makes room for a new one; where none is silent, the new one
is told so with 503.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from service_kit.http_limits import Envelope, PortLimits, raw_answer
from service_kit.request_ids import REQUEST_ID, new_request_id

log = logging.getLogger(__name__)

_GOODBYE_S: Final = 1.0
"""How long a refused client has to read why."""
_MOST_GOODBYES: Final = 256


@dataclass(slots=True)
class _Peer:
    """Connections of one address; the silent ones in the order in which they fell silent."""

    open: int = 0
    silent: "dict[BoundedConnection, None]" = field(default_factory=dict)


class Connections:
    """Those of one port."""

    def __init__(self, limits: PortLimits, most: int, envelope: Envelope) -> None:
        """most: of all together."""
        self.limits = limits
        self.envelope = envelope
        self._most = most
        self._open = 0
        self._goodbyes = 0
        self._peers: dict[str, _Peer] = {}

    def admit(self, connection: "BoundedConnection") -> str | None:
        """Counts it, as a silent one; else why it has no place."""
        address = connection.peer
        peer = self._peers.get(address)
        is_full = peer is not None and peer.open >= self.limits.connections_per_peer
        if peer is not None and is_full and address not in self.limits.fronts and not self._make_room(peer):
            return self.limits.full_for(address)
        if self._open >= self._most and not self._make_room(self._most_silent()):
            return self.limits.full(self._most)
        peer = self._peers.setdefault(address, _Peer())
        peer.open += 1
        peer.silent[connection] = None
        self._open += 1
        return None

    def at_work(self, connection: "BoundedConnection") -> None:
        """It has a request."""
        self._peers[connection.peer].silent.pop(connection, None)

    def silent(self, connection: "BoundedConnection") -> None:
        """Its request has its answer."""
        self._peers[connection.peer].silent[connection] = None

    def forget(self, connection: "BoundedConnection") -> None:
        """It ends."""
        peer = self._peers[connection.peer]
        peer.silent.pop(connection, None)
        peer.open -= 1
        self._open -= 1
        if not peer.open:
            del self._peers[connection.peer]

    def goodbye(self, transport: asyncio.Transport, message: str) -> None:
        """Refuse a connection that was not admitted."""
        if self._goodbyes >= _MOST_GOODBYES:
            transport.abort()
            return
        self._goodbyes += 1
        transport.write(
            raw_answer(self.envelope, HTTPStatus.SERVICE_UNAVAILABLE, "too_many_connections", message)
        )
        if transport.can_write_eof():
            transport.write_eof()
        asyncio.get_running_loop().call_later(_GOODBYE_S, self._gone, transport)

    def _gone(self, transport: asyncio.Transport) -> None:
        self._goodbyes -= 1
        transport.abort()

    def _make_room(self, peer: _Peer | None) -> bool:
        if peer is None or not peer.silent:
            return False
        next(iter(peer.silent)).leave()
        return True

    def _most_silent(self) -> _Peer | None:
        return max(self._peers.values(), key=lambda peer: len(peer.silent), default=None)


class BoundedConnection(RequestHandler):
    """aiohttp's, with a place in the count, deadlines, and the envelope for what is no HTTP."""

    __slots__ = ("_book", "_has_begun", "_head", "_is_busy", "_socket", "_stall", "peer")

    def __init__(self, server: web.Server, book: Connections, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server, loop=loop, keepalive_timeout=book.limits.idle_s, access_log=cast(logging.Logger, None)
        )
        self._book = book
        self._socket: asyncio.Transport | None = None
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._is_busy = False
        self._has_begun = False
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit it, or say why not."""
        made = cast(asyncio.Transport, transport)
        self.peer = _address_of(made)
        refusal = self._book.admit(self)
        if refusal is not None:
            self._book.goodbye(made, refusal)
            return
        self._socket = made
        made.set_write_buffer_limits(high=1, low=0)  # what the client does not read is noticed at once
        super().connection_made(transport)
        self._head = self._later(self._book.limits.head_s, self._too_slow)

    def data_received(self, data: bytes) -> None:
        """Bytes of a silent client begin a request."""
        if self._socket is None:
            return
        if not self._is_busy and not self._has_begun and data:
            self._has_begun = True
            self._head = self._head or self._later(self._book.limits.head_s, self._too_slow)
        super().data_received(data)

    def request_began(self) -> None:
        """Its head is there."""
        if self._socket is not None:
            _stop(self._head)
            self._head, self._is_busy = None, True
            self._book.at_work(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """The last thing that is done for a request."""
        done = await super().finish_response(request, resp, start_time)
        self._is_busy, self._has_begun = False, False
        if self._socket is not None:
            self._book.silent(self)
        return done

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self._later(self._book.limits.stall_s, self._too_idle)

    def resume_writing(self) -> None:
        """It has read all there was."""
        super().resume_writing()
        _stop(self._stall)
        self._stall = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give the place back."""
        if self._socket is not None:
            self._forgotten()
        super().connection_lost(exc)

    def leave(self) -> None:
        """Make room: it is silent."""
        self._forgotten()
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP, and what no middleware caught, in the envelope."""
        request_id = new_request_id()
        is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
        if is_ours:
            log.error("request_failed", extra={"request_id": request_id}, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun; an error cannot be told any more")
        text = "internal error; the log has it under this id" if is_ours else f"this is no HTTP: {message}"
        code = "internal_error" if is_ours else "malformed_request"
        answer = web.json_response(self._book.envelope(status, code, text, request_id), status=status)
        answer.headers[REQUEST_ID] = request_id
        answer.force_close()
        return answer

    def _forgotten(self) -> None:
        _stop(self._head)
        _stop(self._stall)
        self._socket, self._head, self._stall = None, None, None
        self._book.forget(self)

    def _too_slow(self) -> None:
        self._head = None
        if self._socket is not None and self._has_begun:
            words = self._book.limits.slow_head()
            self._socket.write(
                raw_answer(self._book.envelope, HTTPStatus.REQUEST_TIMEOUT, "request_timeout", words)
            )
        self.force_close()

    def _too_idle(self) -> None:
        self._stall = None
        if self._socket is not None:
            log.info("client_does_not_read", extra={"peer": self.peer, "seconds": self._book.limits.stall_s})
            self._socket.abort()

    @staticmethod
    def _later(seconds: float, then: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, then)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _address_of(transport: asyncio.Transport) -> str:
    name: Any = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else "unix"
