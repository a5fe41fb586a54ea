"""HTTP to one engine: deadlines, JSON, trace context, and the engine's errors as typed ones."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import orjson
from opentelemetry import propagate

from engine_client.errors import ContextOverflow, EngineRejected, EngineUnavailable, MalformedReply
from engine_client.tls import EngineTls

_CONNECT_S: Final = 5.0
_OVERFLOW = re.compile(
    r"maximum (context|model) length|max_model_len|longer than the maximum|"
    r"max_tokens must be at least 1, got (0|-\d+)"
)
_RETRIABLE = frozenset({408, 425, 429})
_REDIRECTS: Final = range(300, 400)


class Transport:
    """Owns the connection pool. Not safe to share between event loops."""

    def __init__(self, base_url: str, key: str = "", *, only_https: bool = False) -> None:
        """key: sent with each request, where there is one. only_https: as of EngineTls."""
        self.base_url = base_url.rstrip("/")
        self._key = {"authorization": f"Bearer {key}"} if key else {}
        self._tls = EngineTls(only_https=only_https)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the pool; the next call opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str, *, timeout_s: float) -> Any:
        """Parsed JSON of a GET; None where the body is empty."""
        return await self._call("GET", path, None, timeout_s)

    async def text(self, path: str, *, timeout_s: float) -> str:
        """The text of a GET."""
        return (await self._exchange("GET", path, None, timeout_s)).decode("utf-8", "replace")

    async def post(self, path: str, body: Mapping[str, Any] | None, *, timeout_s: float) -> Any:
        """Parsed JSON of a POST; None where the body is empty."""
        return await self._call("POST", path, body, timeout_s)

    async def order(self, path: str, body: Mapping[str, Any] | None, *, timeout_s: float) -> None:
        """A POST whose answer is only its status; vLLM says "Success" in plain text to some."""
        await self._exchange("POST", path, body, timeout_s)

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Any:
        return _parse(await self._exchange(method, path, body, timeout_s), path)

    async def _exchange(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> bytes:
        data = None if body is None else orjson.dumps(body)
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=_CONNECT_S)
        try:
            status, content = await self._send(method, path, data, timeout)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if _was_dropped(error):
                return await self._exchange_anew(method, path, data, timeout)
            raise self._unavailable(f"{method} {path}", error, timeout_s) from error
        return _accepted(status, content, path)

    async def _exchange_anew(
        self, method: str, path: str, data: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> bytes:
        try:
            status, content = await self._send(method, path, data, timeout)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(f"{method} {path}", error, timeout.total) from error
        return _accepted(status, content, path)

    async def _send(
        self, method: str, path: str, data: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> tuple[int, bytes]:
        context = self._tls.context_for(self.base_url)
        async with self._open().request(
            method,
            self.base_url + path,
            data=data,
            headers={**_headers(), **self._key},
            timeout=timeout,
            ssl=True if context is None else context,
            allow_redirects=False,  # it could lead to http://, and what engines are asked is no one else's
        ) as reply:
            if reply.status in _REDIRECTS:
                to = reply.headers.get("location", "")
                raise EngineUnavailable(
                    f"engine {self.base_url} redirects {method} {path} to {to!r:.200}, and that is not "
                    "followed: let its address be the one where it answers"
                )
            return reply.status, await reply.read()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # The engine batches whatever arrives: a cap on connections would only hide requests from it.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
                auto_decompress=False,
            )
        return self._session

    def _unavailable(self, what: str, error: Exception, timeout_s: float | None = None) -> EngineUnavailable:
        if isinstance(error, asyncio.TimeoutError):
            limit = "" if timeout_s is None else f" within {timeout_s:g} s"
            return EngineUnavailable(f"engine {self.base_url} did not answer {what}{limit}")
        return EngineUnavailable(f"engine {self.base_url} cannot be reached for {what}: {error}")


def _was_dropped(error: Exception) -> bool:
    """Whether the engine closed a kept connection just now (uvicorn does so after 5 s): seen as the answer is
    read, or as a request is written. Nothing was answered on it, and all that we send may be sent twice."""
    is_of_a_connection = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    return is_of_a_connection and not isinstance(error, aiohttp.ClientConnectorError)


def _headers() -> dict[str, str]:
    headers = {"content-type": "application/json"}
    propagate.inject(headers)
    return headers


def _accepted(status: int, content: bytes, path: str) -> bytes:
    if status >= 400:
        raise _refusal(status, content, path)
    return content


def _parse(content: bytes, path: str) -> Any:
    if not content:
        return None
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise MalformedReply(f"{path} answered no JSON: {content[:80]!r}") from error


def _refusal(status: int, content: bytes, path: str) -> EngineRejected | EngineUnavailable:
    message = _message(content) or f"{path} answered HTTP {status} without a message"
    if status >= 500 or status in _RETRIABLE:
        return EngineUnavailable(f"{path} answered HTTP {status}: {message}")
    # vLLM gives a full context no code of its own, only its wording.
    if status == 400 and _OVERFLOW.search(message):
        return ContextOverflow(status, message)
    return EngineRejected(status, message)


def _message(content: bytes) -> str:
    try:
        reply = orjson.loads(content)
    except orjson.JSONDecodeError:
        return content[:500].decode("utf-8", "replace")
    error = reply.get("error", reply.get("detail")) if isinstance(reply, dict) else reply
    if isinstance(error, dict):
        return str(error.get("message", error))
    return "" if error is None else str(error)
