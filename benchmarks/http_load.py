"""Chat requests over kept connections, for any server of OpenAI's API: clients that cost next to nothing."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

import orjson

from benchmarks.stacks import BenchmarkFailed

_CALLS_OF_A_SESSION: Final = 10
_PROMPT: Final = "Alert: amber-cart is failing. Find the service at fault and the cause."
_LONGEST_S: Final = 300.0
_DONE: Final = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Kind:
    """Of requests. tokens: asked for; of a stream as many events, `pause_ms` apart."""

    tokens: int
    is_recorded: bool = False
    is_streamed: bool = False
    pause_ms: int = 0

    def body(self, model: str) -> bytes:
        """Of a request."""
        fields: dict[str, Any] = {
            "model": model,
            "max_tokens": self.tokens,
            "temperature": 1.0,
            "messages": [{"role": "user", "content": _PROMPT}],
        }
        if self.is_streamed:
            fields |= {"stream": True, "seed": self.pause_ms}
        return orjson.dumps(fields)


@dataclass(slots=True)
class Load:
    """Requests that are asked one after the other on each connection. first_byte_s, whole_s: of each answer,
    to its first byte of content and to its end."""

    kind: Kind
    model: str
    key: str
    left: int
    asked: int = 0
    began: float = field(default_factory=time.perf_counter)
    failure: str = ""
    open_now: int = 0
    most_open: int = 0
    first_byte_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)

    def next(self) -> bytes | None:
        """The next request; None after the last."""
        if not self.left or self.failure:
            return None
        self.left -= 1
        self.asked += 1
        body = self.kind.body(self.model)
        name = f"bench-{self.began}-{self.asked // _CALLS_OF_A_SESSION}"
        session = f"x-session-id: {name}\r\n" if self.kind.is_recorded else ""
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {self.key}\r\n"
            f"content-type: application/json\r\n{session}content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._came = b""
        self._is_open = False
        self._asked_at = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Ask again, once the answer is whole."""
        self._came += data
        head, blank, body = self._came.partition(b"\r\n\r\n")
        if not blank:
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self._load.failure = f"{head!r} {body!r}"
        elif self._load.kind.is_streamed:
            if body and not self._is_open:
                self._opened()
            if _DONE not in self._came or not self._came.endswith(b"0\r\n\r\n"):
                return
        elif len(body) < int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            return
        self._ended()
        self._ask()

    def _opened(self) -> None:
        self._is_open = True
        self._load.first_byte_s.append(time.perf_counter() - self._asked_at)
        self._load.open_now += 1
        self._load.most_open = max(self._load.most_open, self._load.open_now)

    def _ended(self) -> None:
        self._load.whole_s.append(time.perf_counter() - self._asked_at)
        self._load.open_now -= self._is_open
        self._came, self._is_open = b"", False

    def connection_lost(self, exc: BaseException | None) -> None:
        """The server must not end it."""
        if not self.done.done():
            self._load.failure = f"a connection was lost: {exc}"
            self.done.set_result(None)

    def _ask(self) -> None:
        request = self._load.next()
        if request is not None:
            self._asked_at = time.perf_counter()
            self._transport.write(request)
            return
        if not self.done.done():
            self.done.set_result(None)
        self._transport.close()


async def asked(load: Load, url: str, clients: int) -> float:
    """Requests per second. Raises BenchmarkFailed where one is not answered with 200."""
    where, loop, opened = urlsplit(url), asyncio.get_running_loop(), []
    count, began = load.left, time.perf_counter()
    for _ in range(clients):
        _, client = await loop.create_connection(lambda: Client(load), where.hostname or "", where.port or 0)
        opened.append(client)
    try:
        async with asyncio.timeout(_LONGEST_S):
            await asyncio.gather(*(client.done for client in opened))
    except TimeoutError:
        load.failure = f"{len(load.whole_s)} of {count} were answered within {_LONGEST_S:g} s"
    if load.failure:
        raise BenchmarkFailed(f"a request of {load.kind} to {url} failed: {load.failure}")
    return count / (time.perf_counter() - began)
