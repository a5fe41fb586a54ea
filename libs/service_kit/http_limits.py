"""What the clients of an HTTP port may hold of it, and the words in which they are told."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self

from aiohttp import web

from service_kit.groups import EdgeSettings
from service_kit.request_ids import REQUEST_ID, new_request_id

Envelope = Callable[[int, str, str, str], object]
"""From status, code, message and the request's id to the body of an answer."""

BODY_S: Final = web.AppKey("body-s", float)
"""Seconds that the body of a request may take to arrive, for those who read it."""
_FOR_ALL: Final = (
    "this port has {most} open connections, its limit; try again later, or raise UPCYCLE_EDGE_CONNECTIONS"
)
_FOR_PEER: Final = (
    "{peer} has {most} open connections here, the most of one address, and all are at work; close some, or "
    "raise UPCYCLE_EDGE_CONNECTIONS_PER_PEER"
)
_SLOW_HEAD: Final = "the head of the request did not arrive within {seconds:g} s (UPCYCLE_EDGE_HEADER_S)"


@dataclass(frozen=True, slots=True)
class PortLimits:
    """Of one port. fronts: addresses that speak for many clients. Seconds: until a request has its head
    (head_s), and its body (body_s); that an answer may stay unread (stall_s); between requests (idle_s)."""

    connections: int
    connections_per_peer: int
    fronts: frozenset[str]
    head_s: float
    body_s: float
    stall_s: float
    idle_s: float

    @classmethod
    def of(cls, settings: EdgeSettings) -> Self:
        """Those that the settings name."""
        return cls(
            connections=settings.connections,
            connections_per_peer=settings.connections_per_peer,
            fronts=settings.fronts,
            head_s=settings.header_s,
            body_s=settings.body_s,
            stall_s=settings.stall_s,
            idle_s=settings.idle_s,
        )

    def full(self, most: int) -> str:
        """What a connection beyond the limit of all is told."""
        return _FOR_ALL.format(most=most)

    def full_for(self, peer: str) -> str:
        """What a connection beyond the limit of its address is told."""
        return _FOR_PEER.format(peer=peer, most=self.connections_per_peer)

    def slow_head(self) -> str:
        """What a client is told that began a request and did not go on."""
        return _SLOW_HEAD.format(seconds=self.head_s)


def error_envelope(status: int, code: str, message: str, request_id: str) -> object:
    """The envelope that OpenAI's clients read."""
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    said = {"message": message, "type": kind, "param": None, "code": code}
    return {"error": said, "request_id": request_id}


def raw_answer(envelope: Envelope, status: HTTPStatus, code: str, message: str) -> bytes:
    """A whole answer, for a connection on which no request was read; it closes the connection."""
    request_id = new_request_id()
    body = json.dumps(envelope(status, code, message, request_id)).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{REQUEST_ID}: {request_id}\r\nretry-after: 1\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body
