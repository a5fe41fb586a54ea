"""Channels with a deadline on every call, trace context, and retries only where callers say they are safe."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import grpc
import grpc.aio
from opentelemetry import propagate, trace
from opentelemetry.instrumentation.grpc import aio_client_interceptors

from upcycle.rpc.limits import MAX_MESSAGE_BYTES, client_options
from upcycle.rpc.secure_channel import SecureChannel
from upcycle.tls import current

_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 1.0

Details = grpc.aio.ClientCallDetails
Continuation = Callable[[Details, Any], Awaitable[Any]]


def connect(
    address: str,
    *,
    default_timeout_s: float = 10.0,
    idempotent: Collection[str] = (),
    api_key: str | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """Open a channel; nothing is sent before the first call. Needs a running event loop; close it yourself.

    default_timeout_s: deadline of calls that set none; response streams are bounded by keepalive only.
    idempotent: bare method names ("GetRun") that may be sent again when the service is unavailable, until the
    deadline; all others fail at once.
    In TLS where `upcycle.tls` says so: by the settings of a service, or UPCYCLE_TLS_CA. Raises
    TlsFilesUnusable.
    """
    interceptors: list[grpc.aio.ClientInterceptor] = [
        *aio_client_interceptors(filter_=_is_recorded),
        _UnaryCalls(default_timeout_s, frozenset(idempotent), api_key),
        _StreamUnaryCalls(default_timeout_s, api_key),
        _UnaryStreamCalls(api_key),
        _StreamStreamCalls(api_key),
    ]
    options = client_options(max_message_bytes)
    if (tls := current()) is not None:
        return SecureChannel(address, tls, options, interceptors)
    return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)


def _is_recorded(_: Details) -> bool:
    """Whether the call gets a span of its own. Calls of polling loops belong to no trace and get none."""
    return trace.get_current_span().is_recording()


def _with_defaults(details: Details, api_key: str | None, timeout_s: float | None = None) -> Details:
    metadata = grpc.aio.Metadata(*(details.metadata or ()))
    if not (span := trace.get_current_span()).is_recording() and span.get_span_context().is_valid:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        for name, text in carrier.items():
            metadata.add(name, text)
    if api_key is not None and not metadata.get_all("authorization"):
        metadata.add("authorization", f"Bearer {api_key}")
    timeout = timeout_s if details.timeout is None else details.timeout
    return grpc.aio.ClientCallDetails(
        details.method, timeout, metadata, details.credentials, details.wait_for_ready
    )


class _UnaryCalls(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, timeout_s: float, idempotent: frozenset[str], api_key: str | None) -> None:
        self._timeout_s = timeout_s
        self._idempotent = idempotent
        self._api_key = api_key

    async def intercept_unary_unary(
        self, continuation: Continuation, client_call_details: Details, request: Any
    ) -> Any:
        details = _with_defaults(client_call_details, self._api_key, self._timeout_s)
        if _method_name(details) not in self._idempotent:
            return await continuation(details, request)
        return await _until_available(continuation, details, request)


async def _until_available(continuation: Continuation, details: Details, request: Any) -> Any:
    """Send again while the service is UNAVAILABLE, within the one deadline of the call."""
    give_up_at = time.monotonic() + (details.timeout or 0.0)
    delay_s = _FIRST_DELAY_S
    while True:
        left_s = max(give_up_at - time.monotonic(), 0.001)
        call = await continuation(_with_timeout(details, left_s), request)
        code = await _code(call)
        wait_s = delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        if code is not grpc.StatusCode.UNAVAILABLE or time.monotonic() + wait_s >= give_up_at:
            return call
        await asyncio.sleep(wait_s)
        delay_s = min(delay_s * 2, _MAX_DELAY_S)


async def _code(call: Any) -> grpc.StatusCode:
    try:
        code: grpc.StatusCode = await call.code()
    except asyncio.CancelledError:
        call.cancel()
        raise
    return code


def _with_timeout(details: Details, timeout_s: float) -> Details:
    return grpc.aio.ClientCallDetails(
        details.method, timeout_s, details.metadata, details.credentials, details.wait_for_ready
    )


def _method_name(details: Details) -> str:
    method = details.method
    return (method.decode() if isinstance(method, bytes) else str(method)).rpartition("/")[2]


class _StreamUnaryCalls(grpc.aio.StreamUnaryClientInterceptor):
    def __init__(self, timeout_s: float, api_key: str | None) -> None:
        self._timeout_s = timeout_s
        self._api_key = api_key

    async def intercept_stream_unary(
        self, continuation: Continuation, client_call_details: Details, request_iterator: Any
    ) -> Any:
        details = _with_defaults(client_call_details, self._api_key, self._timeout_s)
        return await continuation(details, request_iterator)


class _UnaryStreamCalls(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, api_key: str | None) -> None:
        self._api_key = api_key

    async def intercept_unary_stream(
        self, continuation: Continuation, client_call_details: Details, request: Any
    ) -> Any:
        return await continuation(_with_defaults(client_call_details, self._api_key), request)


class _StreamStreamCalls(grpc.aio.StreamStreamClientInterceptor):
    def __init__(self, api_key: str | None) -> None:
        self._api_key = api_key

    async def intercept_stream_stream(
        self, continuation: Continuation, client_call_details: Details, request_iterator: Any
    ) -> Any:
        return await continuation(_with_defaults(client_call_details, self._api_key), request_iterator)
