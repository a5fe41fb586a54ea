"""Server interceptor around every handler: API key, unknown fields, a default deadline, no raw exceptions."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from grpc_edge.status import StatusTable, abort, domain_errors_as_status

if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]
Context = grpc.aio.ServicerContext[Any, Any]

OPEN_SERVICES: Final = ("/grpc.health.v1.Health/", "/grpc.reflection.")
"""Methods that need no key and get no span."""


class Guard(grpc.aio.ServerInterceptor):
    """What no servicer has to think about."""

    def __init__(
        self,
        *,
        default_deadline_s: float,
        api_keys: tuple[str, ...] = (),
        statuses: Mapping[str, StatusTable] | None = None,
    ) -> None:
        """`default_deadline_s` bounds unary calls that bring no deadline. No `api_keys`: open to all.

        statuses: full name of a service -> the statuses of the errors that its methods raise.
        """
        self._statuses = {} if statuses is None else statuses
        self._default_deadline_s = default_deadline_s
        self._api_keys = api_keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Wrap the handler that the call will reach."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(OPEN_SERVICES):
            return handler
        service = handler_call_details.method.strip("/").rpartition("/")[0]
        return self._guarded(handler, self._statuses.get(service, {}))

    def _guarded(self, handler: "Handler", table: StatusTable) -> "Handler":
        codecs = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._unary(handler.unary_unary, table), **codecs)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._stream(handler.unary_stream, table), **codecs)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._unary(handler.stream_unary, table), **codecs)
        return grpc.stream_stream_rpc_method_handler(self._stream(handler.stream_stream, table), **codecs)

    def _unary(self, behavior: Any, table: StatusTable) -> Any:
        async def guarded(request: Any, context: Context) -> Any:
            async with domain_errors_as_status(context, table):
                await self._admit(request, context)
                if context.time_remaining() is not None:
                    return await behavior(request, context)
                return await self._bounded(behavior(request, context), context)

        return guarded

    def _stream(self, behavior: Any, table: StatusTable) -> Any:
        async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
            async with domain_errors_as_status(context, table):
                await self._admit(request, context)
                async for response in behavior(request, context):
                    yield response

        return guarded

    async def _bounded(self, work: Awaitable[Any], context: Context) -> Any:
        scope = asyncio.timeout(self._default_deadline_s)
        try:
            async with scope:
                return await work
        except TimeoutError:
            if not scope.expired():
                raise
        message = f"no deadline was set, and the default of {self._default_deadline_s:g} s passed"
        await abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "DEFAULT_DEADLINE", message)

    async def _admit(self, request: Any, context: Context) -> None:
        if self._api_keys and not self._has_key(context):
            message = "send a valid API key as metadata `authorization: Bearer <key>`"
            await abort(context, grpc.StatusCode.UNAUTHENTICATED, "WRONG_API_KEY", message)
        unknown = unknown_field(request) if isinstance(request, Message) else None
        if unknown is not None:
            message = f"the request has {unknown}, which this server does not know; is the client newer?"
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "UNKNOWN_FIELD", message)

    def _has_key(self, context: Context) -> bool:
        metadata = dict(context.invocation_metadata() or ())
        given = str(metadata.get("authorization", "")).removeprefix("Bearer ").encode()
        return any([hmac.compare_digest(given, key.encode()) for key in self._api_keys])


def unknown_field(message: Message, path: str = "") -> str | None:
    """The first field that our contracts do not have, as `field 12 in a.b`, or None."""
    where = path or message.DESCRIPTOR.name
    unknown = UnknownFieldSet(message)
    if len(unknown):
        return f"field {unknown[0].field_number} in {where}"
    for descriptor, value in message.ListFields():
        for part in _messages(descriptor, value):
            found = unknown_field(part, f"{where}.{descriptor.name}")
            if found is not None:
                return found
    return None


def _messages(descriptor: Any, value: Any) -> list[Message]:
    """The messages a field holds: one, many, or the values of a map."""
    if descriptor.message_type is None:
        return []
    if descriptor.message_type.GetOptions().map_entry:
        return [part for part in value.values() if isinstance(part, Message)]
    return [value] if isinstance(value, Message) else list(value)
