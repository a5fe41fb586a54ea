"""HTTP to engines: connections are kept, bytes are passed on as they come."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import orjson

from engine_client import EngineUnavailable, version_of_label
from engine_client.tls import EngineTls
from model_gateway.adapters.engine_connections import Answer, AnswerLost, EngineConnection, NothingReceived
from model_gateway.domain.errors import EngineLost
from model_gateway.domain.routing import EngineRoute

_CONNECT_S: Final = 2.0
_PROBE_S: Final = 1.0
_OK: Final = 200
_PORTS: Final = {"http": 80, "https": 443}
_MOST_ORIGINS: Final = 1024


class HttpReply:
    """An answer of which the head has arrived."""

    __slots__ = ("_answer", "_engine")

    def __init__(self, engine: EngineRoute, answer: Answer) -> None:
        self._engine = engine
        self._answer = answer

    @property
    def status(self) -> int:
        """HTTP status."""
        return self._answer.status

    async def read(self) -> bytes:
        """All of it. Raises EngineLost."""
        try:
            return await self._answer.body()
        except AnswerLost as error:
            raise _lost(self._engine, error) from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """As it arrives. Raises EngineLost."""
        try:
            while part := await self._answer.part():
                yield part
        except AnswerLost as error:
            raise _lost(self._engine, error) from error

    def close(self) -> None:
        """Give up; the engine sees a disconnect and aborts."""
        self._answer.close()


@dataclass(slots=True)
class _Origin:
    """Where an engine is, its free connections, and the heads of requests as far as they are always the
    same."""

    host: str
    port: int
    path: str
    url: str
    named: str  # as the Host header names it
    kept: list[EngineConnection] = field(default_factory=list)
    heads: dict[tuple[str, str], bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, base_url: str) -> "_Origin":
        """Raises ValueError for what is no URL of HTTP."""
        url = urlsplit(base_url)
        if url.scheme not in _PORTS or not url.hostname:
            raise ValueError(f"{base_url!r:.200} is no http:// or https:// URL")
        host = url.hostname
        named = url.netloc.rpartition("@")[2]
        return cls(host, url.port or _PORTS[url.scheme], url.path, f"{url.scheme}://{named}", named)

    def head(self, method: str, path: str) -> bytes:
        """Of a request, up to where its own headers begin."""
        known = self.heads.get((method, path))
        if known is None:
            lines = (
                f"{method} {self.path}{path} HTTP/1.1",
                f"host: {self.named}",
                "user-agent: upcycle-model-gateway",
                "content-type: application/json",
                "accept-encoding: identity",
            )
            known = self.heads[method, path] = "".join(f"{line}\r\n" for line in lines).encode()
        return known


class HttpEngines:
    """HTTP to engines."""

    name = "engines"

    def __init__(self, *, idle_timeout_s: float, only_https: bool = False) -> None:
        """`idle_timeout_s`: silence after which an engine counts as lost in the middle of an answer.
        `only_https`: an engine at http:// is lost."""
        self._idle_timeout_s = idle_timeout_s
        self._origins: dict[str, _Origin] = {}
        self._tls = EngineTls(only_https=only_https)
        self._is_open = False

    async def start(self) -> None:
        """Ready; no connection yet."""
        self._is_open = True

    async def stop(self) -> None:
        """Closes the connections that are kept."""
        self._is_open = False
        for origin in self._origins.values():
            _close(origin)

    def ready(self) -> str | None:
        """Open or not."""
        return None if self._is_open else "closed"

    async def post(
        self, engine: EngineRoute, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpReply:
        """Send a request; the reply when its head has arrived. Raises EngineLost."""
        try:
            return HttpReply(engine, await self._ask(engine, "POST", path, body, headers, timeout_s))
        except AnswerLost as error:
            raise _lost(engine, error) from error

    async def loaded_version(self, engine: EngineRoute) -> int | None:
        """The version that the engine says it samples with (the label at /weight_info), or None."""
        said = await self._get_json(engine, "/weight_info")
        label = said.get("weight_version") if isinstance(said, dict) else None
        return version_of_label(str(label))[0]

    async def max_model_len(self, engine: EngineRoute) -> int | None:
        """Context of the engine's model in tokens, or None."""
        said = await self._get_json(engine, "/v1/models")
        cards = said.get("data", []) if isinstance(said, dict) else []
        lengths = [card.get("max_model_len") for card in cards if card.get("id") == engine.model]
        return int(lengths[0]) if lengths and lengths[0] else None

    async def is_alive(self, engine: EngineRoute) -> bool:
        """Whether the engine says so at /health."""
        status, _ = await self._get(engine, "/health")
        return status == _OK

    async def _get_json(self, engine: EngineRoute, path: str) -> object:
        """The JSON answer, or None if the engine does not answer; callers have a fallback."""
        status, body = await self._get(engine, path)
        try:
            said: object = orjson.loads(body)
        except orjson.JSONDecodeError:
            return None
        return said if status == _OK else None

    async def _get(self, engine: EngineRoute, path: str) -> tuple[int, bytes]:
        """Status and body; 0 where the engine does not answer."""
        try:
            async with asyncio.timeout(_PROBE_S):
                answer = await self._ask(engine, "GET", path, b"", {}, _PROBE_S)
                try:
                    return answer.status, await answer.body()
                finally:
                    answer.close()
        except (AnswerLost, TimeoutError):
            return 0, b""

    async def _ask(
        self,
        engine: EngineRoute,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> Answer:
        """The answer when its head has arrived. Raises AnswerLost."""
        origin = self._origin(engine.base_url)
        request = origin.head(method, path) + _own_headers(headers, len(body)) + body
        if origin.kept:
            try:
                return await self._asked(origin.kept.pop(), request, timeout_s)
            except NothingReceived:  # an engine ends silent connections, too: uvicorn after 5 s
                pass
        return await self._asked(await self._connected(origin), request, timeout_s)

    async def _asked(self, connection: EngineConnection, request: bytes, timeout_s: float) -> Answer:
        answer = connection.ask(request, silence_s=self._idle_timeout_s, timeout_s=timeout_s)
        try:
            await answer.head()
        except BaseException:
            answer.close()
            raise
        return answer

    def _origin(self, base_url: str) -> _Origin:
        if not self._is_open:
            raise RuntimeError("the engine client is used before it was started")
        known = self._origins.get(base_url)
        if known is None:
            if len(self._origins) >= _MOST_ORIGINS:  # engines come and go, and their ports with them
                _close(self._origins.pop(next(iter(self._origins))))
            try:
                known = self._origins[base_url] = _Origin.of(base_url)
            except ValueError as error:
                raise AnswerLost(str(error)) from error
        return known

    async def _connected(self, origin: _Origin) -> EngineConnection:
        try:
            context = self._tls.context_for(origin.url)
        except EngineUnavailable as error:
            raise AnswerLost(str(error)) from error
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: EngineConnection(origin.kept), origin.host, origin.port, ssl=context
                )
        except TimeoutError as error:
            raise AnswerLost(f"no connection within {_CONNECT_S:g} s") from error
        except (OSError, UnicodeError) as error:  # the latter: no name of a host can be like that
            raise AnswerLost(f"{type(error).__name__}: {error}") from error
        return connection


def _close(origin: _Origin) -> None:
    for connection in list(origin.kept):
        connection.abort()


def _own_headers(headers: Mapping[str, str], body_bytes: int) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header of a request to an engine has a line break in it")
    return f"{lines}content-length: {body_bytes}\r\n\r\n".encode()


def _lost(engine: EngineRoute, error: BaseException) -> EngineLost:
    return EngineLost(f"engine {engine.engine_id} of {engine.model} was lost: {error}".rstrip(": "))
