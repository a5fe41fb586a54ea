"""The wall before vLLM's HTTP: an ASGI middleware, `--middleware upcycle_vllm_wall.VllmWall`.

Sampling and health are open to each caller; all else, also what this file does not know, steers the engine
and needs the key of this start. No request reaches vLLM before its body is whole; bodies are bounded in size,
time and number. It runs in vLLM's own environment, so it needs the standard library alone.
"""

import asyncio
import hmac
import itertools
import json
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

KEY_VARIABLE: Final = "UPCYCLE_VLLM_ADMIN_KEY"
"""Where the wall finds its key; without one nothing steers."""
BODY_BYTES_VARIABLE: Final = "UPCYCLE_VLLM_BODY_BYTES"
OPEN_ROUTES: Final = frozenset({
    ("GET", "/health"), ("GET", "/is_paused"), ("GET", "/metrics"), ("GET", "/v1/models"),
    ("GET", "/version"), ("GET", "/weight_info"), ("POST", "/detokenize"), ("POST", "/inference/v1/generate"),
    ("POST", "/tokenize"), ("POST", "/v1/chat/completions"), ("POST", "/v1/chat/completions/tokens"),
    ("POST", "/v1/completions"),
})  # fmt: skip
"""What needs no key: the routes that the embedded engine leaves open, too."""

_BODIES_HELD: Final = 32
"""Bodies of the largest size that are held at once; most are a thousandth of it."""
_REQUEST_ID: Final = b"x-request-id"

Scope = Mapping[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Refused(Exception):
    """A request that vLLM does not see."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


@dataclass(frozen=True)
class Limits:
    """body_s: seconds until a body is whole. requests: at once, without the key. fronts: addresses that have
    no limit of one peer."""

    body_bytes: int = 32 << 20
    body_s: float = 120.0
    requests: int = 8192
    requests_per_peer: int = 4096
    fronts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> "Limits":
        """As the variables of the edge say. Raises ValueError."""
        get = variables.get
        return cls(
            body_bytes=int(get(BODY_BYTES_VARIABLE, cls.body_bytes)),
            body_s=float(get("UPCYCLE_EDGE_BODY_S", cls.body_s)),
            requests=int(get("UPCYCLE_EDGE_CONNECTIONS", cls.requests)),
            requests_per_peer=int(get("UPCYCLE_EDGE_CONNECTIONS_PER_PEER", cls.requests_per_peer)),
            fronts=frozenset(filter(None, (one.strip() for one in get("UPCYCLE_EDGE_FRONT", "").split(",")))),
        )


class VllmWall:
    """Around the application of vLLM's server."""

    def __init__(self, app: App) -> None:
        """The key and the limits are those of the process's variables. Raises ValueError."""
        self._app = app
        self._limits = Limits.of(os.environ)
        self._key = os.environ.get(KEY_VARIABLE, "").encode()
        self._places = _Places(self._limits)
        self._new_id = _request_ids()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = self._new_id()
        try:
            if scope["type"] != "http":
                raise Refused(403, "PermissionDeniedError", f"this port has no {scope['type']} for callers")
            await self._guarded(scope, receive, _identified(send, request_id))
        except Refused as refusal:
            await _refuse(scope, receive, send, refusal, request_id)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_key = self._is_shown(scope)
        if not has_key and (scope["method"], scope["path"]) not in OPEN_ROUTES:
            raise Refused(
                401,
                "AuthenticationError",
                f"{scope['path']} steers the engine and needs its key, as `Authorization: Bearer <key>`: its "
                f"supervisor has it, or the variable {KEY_VARIABLE} of the engine",
            )
        # What only reads is not counted, and sends no body: a full engine is not a dead one.
        is_read = scope["method"] == "GET"
        limit = 0 if is_read else self._limits.body_bytes
        counted = not has_key and not is_read
        with self._places.taken(_peer_of(scope)) if counted else _no_place() as place:
            body = await self._body(scope, receive, place, limit)
            if body is not None:
                await self._app(scope, _replayed(body, receive), send)

    def _is_shown(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        expected = b"Bearer " + self._key
        return bool(self._key) and len(given) == 1 and hmac.compare_digest(given[0], expected)

    async def _body(self, scope: Scope, receive: Receive, place: "_Place", limit: int) -> bytes | None:
        """The whole of it; None: the caller left."""
        declared = _declared_bytes(scope)
        if declared > limit:
            raise _too_large(f"{declared} bytes", limit)
        try:
            async with asyncio.timeout(self._limits.body_s):
                return await _whole(receive, place, limit)
        except TimeoutError:
            message = f"the body of the request did not arrive within {self._limits.body_s:g} s"
            raise Refused(408, "request_timeout", f"{message} (UPCYCLE_EDGE_BODY_S)") from None


class _Places:
    """Who has how many requests here, and how many bytes of bodies are held."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._peers: Counter[str] = Counter()
        self._requests = 0
        self._bytes = 0

    @contextmanager
    def taken(self, peer: str) -> Iterator["_Place"]:
        """A place for one request of this peer, until it is answered. Raises Refused."""
        self._admit(peer)
        place = _Place(self)
        self._requests += 1
        self._peers[peer] += 1
        try:
            yield place
        finally:
            self._requests -= 1
            self._bytes -= place.held
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]

    def hold(self, count: int) -> None:
        """More bytes of bodies. Raises Refused."""
        most = _BODIES_HELD * self._limits.body_bytes
        if self._bytes + count > most:
            message = (
                f"the bodies of all requests here have {most} bytes, their limit ({BODY_BYTES_VARIABLE})"
            )
            raise Refused(503, "too_many_bytes", f"{message}; try again later")
        self._bytes += count

    def _admit(self, peer: str) -> None:
        most, of_one = self._limits.requests, self._limits.requests_per_peer
        if self._requests >= most:
            message = f"this engine has {most} requests, its limit; try again later, or raise"
            raise Refused(503, "too_many_requests", f"{message} UPCYCLE_EDGE_CONNECTIONS")
        if peer not in self._limits.fronts and self._peers[peer] >= of_one:
            message = f"{peer} has {of_one} requests here, the most of one address; raise"
            raise Refused(503, "too_many_requests", f"{message} UPCYCLE_EDGE_CONNECTIONS_PER_PEER")


class _Place:
    """What one request holds."""

    def __init__(self, places: _Places | None) -> None:
        """None: it is not counted."""
        self._places = places
        self.held = 0

    def hold(self, count: int) -> None:
        """More bytes of its body. Raises Refused."""
        if self._places is not None:
            self._places.hold(count)
            self.held += count


@contextmanager
def _no_place() -> Iterator[_Place]:
    yield _Place(None)


async def _whole(receive: Receive, place: _Place, limit: int) -> bytes | None:
    parts, count = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part = message.get("body", b"")
        count += len(part)
        if count > limit:
            raise _too_large(f"over {limit} bytes", limit)
        place.hold(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message, then what comes after it: that the caller left."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return first.pop() if first else await receive()

    return replay


def _identified(send: Send, request_id: str) -> Send:
    """Each answer has an id, its own or ours."""

    async def identify(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ())]
            if not any(bytes(name).lower() == _REQUEST_ID for name, _ in headers):
                headers.append((_REQUEST_ID, request_id.encode()))
            message = {**message, "headers": headers}
        await send(message)

    return identify


async def _refuse(scope: Scope, receive: Receive, send: Send, refusal: Refused, request_id: str) -> None:
    """In the envelope of the embedded engine; the connection ends, for its body may still be on the way."""
    form = "http.response"
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        form = "websocket.http.response"
        if form not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": str(refusal)})
            return
    said = {"message": str(refusal), "type": refusal.kind, "param": None, "code": refusal.status}
    body = json.dumps({"error": said, "request_id": request_id}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (_REQUEST_ID, request_id.encode()),
        (b"connection", b"close"),
        *([(b"retry-after", b"1")] if refusal.status == 503 else []),
    ]
    await send({"type": f"{form}.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{form}.body", "body": body})


def _too_large(what: str, limit: int) -> Refused:
    return Refused(413, "request_too_large", f"the body has {what}; at most {limit} are taken")


def _declared_bytes(scope: Scope) -> int:
    given = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(given[0]) if given and given[0].isdigit() else 0


def _peer_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unix"


def _request_ids() -> Callable[[], str]:
    """Unique: random per process, then counted."""
    process, counter = secrets.token_hex(6), itertools.count()
    return lambda: f"req-{process}{next(counter):08x}"
