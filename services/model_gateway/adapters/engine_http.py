"""HTTP to engines: one pooled client, connections kept, bytes as they come."""

from collections.abc import AsyncIterator, Mapping

import aiohttp
import orjson

from engine_client import version_of_label
from model_gateway.domain.errors import EngineLost
from model_gateway.domain.routing import EngineRoute

_CONNECT_S = 2.0
_PROBE_S = 1.0
_LOST = (aiohttp.ClientError, TimeoutError, OSError)


class AiohttpReply:
    """An answer of which the head has arrived."""

    def __init__(self, engine: EngineRoute, response: aiohttp.ClientResponse) -> None:
        self._engine = engine
        self._response = response

    @property
    def status(self) -> int:
        """HTTP status."""
        return self._response.status

    @property
    def content_type(self) -> str:
        """Of the body."""
        return self._response.content_type

    async def read(self) -> bytes:
        """All of it. Raises EngineLost."""
        try:
            return await self._response.read()
        except _LOST as error:
            raise _lost(self._engine, error) from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """As it arrives. Raises EngineLost."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except _LOST as error:
            raise _lost(self._engine, error) from error

    def close(self) -> None:
        """Give up; the engine sees a disconnect and aborts."""
        self._response.close()


class AiohttpEngines:
    """HTTP to engines."""

    name = "engines"

    def __init__(self, *, idle_timeout_s: float) -> None:
        """`idle_timeout_s`: silence after which an engine counts as lost in the middle of an answer."""
        self._idle_timeout_s = idle_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Opens the pool; no connection yet."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)

    async def stop(self) -> None:
        """Closes the pool."""
        if self._session is not None:
            await self._session.close()

    def ready(self) -> str | None:
        """Open or not."""
        return None if self._session is not None and not self._session.closed else "closed"

    async def post(
        self, engine: EngineRoute, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AiohttpReply:
        """Send a request; the reply when its head has arrived. Raises EngineLost."""
        timeout = aiohttp.ClientTimeout(
            total=timeout_s, sock_connect=_CONNECT_S, sock_read=self._idle_timeout_s
        )
        sent = {"content-type": "application/json", "accept-encoding": "identity", **headers}
        try:
            response = await self._open().post(
                engine.base_url + path, data=body, headers=sent, timeout=timeout
            )
        except _LOST as error:
            raise _lost(engine, error) from error
        return AiohttpReply(engine, response)

    async def loaded_version(self, engine: EngineRoute) -> int | None:
        """The version that the engine says it samples with (the label at /weight_info), or None."""
        said = await self._get(engine, "/weight_info")
        label = said.get("weight_version") if isinstance(said, dict) else None
        return version_of_label(str(label))[0]

    async def max_model_len(self, engine: EngineRoute) -> int | None:
        """Context of the engine's model in tokens, or None."""
        said = await self._get(engine, "/v1/models")
        cards = said.get("data", []) if isinstance(said, dict) else []
        lengths = [card.get("max_model_len") for card in cards if card.get("id") == engine.model]
        return int(lengths[0]) if lengths and lengths[0] else None

    async def is_alive(self, engine: EngineRoute) -> bool:
        """Whether the engine says so at /health."""
        timeout = aiohttp.ClientTimeout(total=_PROBE_S)
        try:
            async with self._open().get(engine.base_url + "/health", timeout=timeout) as response:
                return response.status == 200
        except _LOST:
            return False

    async def _get(self, engine: EngineRoute, path: str) -> object:
        """The JSON answer, or None if the engine does not answer; callers have a fallback."""
        timeout = aiohttp.ClientTimeout(total=_PROBE_S)
        try:
            async with self._open().get(engine.base_url + path, timeout=timeout) as response:
                said: object = orjson.loads(await response.read())
                return said if response.status == 200 else None
        except (*_LOST, orjson.JSONDecodeError):
            return None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the engine client is used before it was started")
        return self._session


def _lost(engine: EngineRoute, error: BaseException) -> EngineLost:
    return EngineLost(
        f"engine {engine.engine_id} of {engine.model} was lost: {type(error).__name__}: {error}".rstrip(": ")
    )
