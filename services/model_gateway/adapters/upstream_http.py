"""HTTP to providers: their URLs come from the operator's file alone, and no redirect is followed."""

import asyncio
import email.utils
import math
import time
from collections.abc import AsyncIterator, Mapping
from typing import Final

import aiohttp

from model_gateway.domain.upstream.errors import UpstreamFailed, UpstreamSlow
from model_gateway.domain.upstream.providers import Provider
from model_gateway.domain.upstream.refusals import without_key

MAX_ANSWER_BYTES: Final = 64 << 20
"""Of an answer that is read whole."""
_LOST: Final = (aiohttp.ClientError, OSError)
_LONGEST_PAUSE_S: Final = 86_400.0
_PIECE_BYTES: Final = 1 << 16


class UpstreamReply:
    """An answer of which the head has arrived."""

    def __init__(self, provider: Provider, response: aiohttp.ClientResponse) -> None:
        self._provider = provider
        self._response = response

    @property
    def status(self) -> int:
        """HTTP status."""
        return self._response.status

    @property
    def retry_after_s(self) -> float | None:
        """The pause that it asks for, a day at most: seconds or a date; None where it says neither."""
        pause_s = _seconds_in(self._response.headers.get("retry-after", ""))
        return None if pause_s is None or math.isnan(pause_s) else min(max(0.0, pause_s), _LONGEST_PAUSE_S)

    async def read(self) -> bytes:
        """All of it. Raises UpstreamFailed, UpstreamSlow."""
        parts: list[bytes] = []
        size = 0
        async for part in self.pieces():
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise UpstreamFailed(
                    f"provider {self._provider.name!r} answered more than {MAX_ANSWER_BYTES} bytes"
                )
        return b"".join(parts)

    async def pieces(self) -> AsyncIterator[bytes]:
        """As they arrive. Raises UpstreamFailed, UpstreamSlow."""
        idle_s = self._provider.limits.idle_s
        while True:
            try:
                async with asyncio.timeout(idle_s):
                    piece = await self._response.content.read(_PIECE_BYTES)
            except TimeoutError as error:
                raise UpstreamSlow(
                    f"provider {self._provider.name!r} sent nothing for {idle_s:g} s, or did not end its "
                    "answer in the time that a request may take"
                ) from error
            except _LOST as error:
                raise _failed(self._provider, error) from error
            if not piece:
                return
            yield piece
            await asyncio.sleep(0)  # what came faster than it is read leaves a turn to other requests

    def close(self) -> None:
        """Give up; the provider sees a disconnect."""
        self._response.close()


class UpstreamHttp:
    """One pool of connections for all providers."""

    name = "upstreams"

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Opens the pool; no connection yet."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
        # No cookies: one client's answer must not change the next one's request.
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )

    async def stop(self) -> None:
        """Closes the pool."""
        if self._session is not None:
            await self._session.close()

    def ready(self) -> str | None:
        """Open or not. A provider that is away does not make the gateway unready."""
        return None if self._session is not None and not self._session.closed else "closed"

    async def post(
        self, provider: Provider, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> UpstreamReply:
        """The reply when its head has arrived. timeout_s: for the whole answer. Raises UpstreamFailed,
        UpstreamSlow."""
        if self._session is None:
            raise RuntimeError("the client of providers is used before it was started")
        limits = provider.limits
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=limits.connect_s)
        sent = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **headers,
        }
        try:
            async with asyncio.timeout(limits.first_byte_s):
                response = await self._session.post(
                    provider.url + path, data=body, headers=sent, timeout=timeout, allow_redirects=False
                )
        except aiohttp.ConnectionTimeoutError as error:
            raise _failed(provider, error) from error
        except TimeoutError as error:
            raise UpstreamSlow(
                f"provider {provider.name!r} did not begin to answer within {limits.first_byte_s:g} s"
            ) from error
        except _LOST as error:
            raise _failed(provider, error) from error
        return UpstreamReply(provider, response)


def _seconds_in(said: str) -> float | None:
    try:
        return float(said)
    except ValueError:
        pass
    try:
        return email.utils.parsedate_to_datetime(said).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None


def _failed(provider: Provider, error: BaseException) -> UpstreamFailed:
    said = without_key(f"{type(error).__name__}: {error}".rstrip(": "), provider)
    return UpstreamFailed(f"provider {provider.name!r} was lost: {said}")
