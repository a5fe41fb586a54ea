"""An MCP server at a URL: streamable HTTP, with a limit on what one answer may hold.

The client's own limit is of the events of a stream. A plain JSON answer is read whole, however long it is, so
here it is read up to the limit, and its call is answered with an error, as of a program's line that is too
long.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.types import JSONRPCError

from upcycle.environment.mcp_program import MAX_RESULT_BYTES, too_large
from upcycle.environment.tools import MAX_TOOL_S

_STREAM: Final = "text/event-stream"
_OF_THE_BODY: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that say how the body travelled: it is read and decoded here."""


@asynccontextmanager
async def http_transport(server: Mapping[str, Any], connect_s: float) -> AsyncIterator[Any]:
    """The streams for a client. server: url, headers."""
    # httpx2's default timeout of 5 s is too short for tools that work; the client bounds each call.
    timeout = httpx2.Timeout(connect_s, read=MAX_TOOL_S)
    async with (
        _BoundedClient(headers=dict(server.get("headers", {})), timeout=timeout) as http,
        streamable_http_client(
            server["url"], http_client=http, max_sse_event_size=MAX_RESULT_BYTES
        ) as streams,
    ):
        yield streams


class _BoundedClient(httpx2.AsyncClient):
    """Reads at most MAX_RESULT_BYTES of an answer that is no stream. No transport, because a client that is
    given one leaves out the proxies of its environment."""

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        """The answer whole, or in its place an error for the call."""
        response = await super().send(request, **{**how, "stream": True})
        if response.headers.get("content-type", "").lower().startswith(_STREAM):
            return response
        try:
            body, size = await _read(response)
        finally:
            await response.aclose()
        headers = [(key, value) for key, value in response.headers.multi_items() if key not in _OF_THE_BODY]
        read = httpx2.Response(
            response.status_code,
            headers=headers,
            content=body if body is not None else _refusal(request, size),
            request=response.request,
            extensions=response.extensions,
            history=response.history,
        )
        read.next_request = response.next_request
        return read


async def _read(response: httpx2.Response) -> tuple[bytes | None, str]:
    """The body, decoded; None where it is larger than the limit, and how large in words."""
    parts, num_bytes = list[bytes](), 0
    async with aclosing(response.aiter_bytes()) as body:
        async for part in body:
            parts.append(part)
            num_bytes += len(part)
            if num_bytes > MAX_RESULT_BYTES:
                return None, _size(response, num_bytes)
    return b"".join(parts), ""


def _size(response: httpx2.Response, num_read: int) -> str:
    whole = response.headers.get("content-length")
    is_plain = "content-encoding" not in response.headers
    return whole if whole and is_plain else f"at least {num_read}"


def _refusal(request: httpx2.Request, size: str) -> bytes:
    """Nothing for a request that no call waits for, such as the one that ends the session."""
    try:
        call = json.loads(request.content)["id"]
    except (ValueError, KeyError, TypeError):
        return b""
    return JSONRPCError(jsonrpc="2.0", id=call, error=too_large(size)).model_dump_json().encode()
