"""Server interceptor around every handler: key, role, unknown fields, default deadline, no raw exceptions.

A stream in either direction ends with its key: before each message the key is looked up again.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from grpc_edge.access import Access, Caller, KeyEnded, callers_of, current_caller, set_caller
from grpc_edge.issued_keys import PLATFORM
from grpc_edge.open_services import OPEN_SERVICES
from grpc_edge.status import MalformedRequest, StatusTable, abort, domain_errors_as_status
from grpc_edge.times import wrong_time
from upcycle.api.common.v1.access_pb2 import Role
from upcycle.errors import Unavailable

if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]
Context = grpc.aio.ServicerContext[Any, Any]

_REST_S: Final = 5.0
"""How long the rest of a refused stream is read, and thrown away."""
_NO_KEY: Final = (
    "this call needs a key that the server knows, as metadata `authorization: Bearer <key>`; commands read "
    "it from UPCYCLE_OPERATOR_KEY, UPCYCLE_USER_KEY or operator.key in the data folder of `upcycle up`"
)
_NO_SCOPE: Final = (
    "{name} lacks the scope `platform`; it has {scopes}: an operator makes another one with "
    "`upcycle keys create`"
)
_NOT_ALLOWED: Final = "a key of a {role} was sent, and {method} is for the key of: {roles}"


class Guard(grpc.aio.ServerInterceptor):
    """What no servicer has to think about."""

    def __init__(
        self, access: Access, *, default_deadline_s: float, statuses: Mapping[str, StatusTable] | None = None
    ) -> None:
        """`default_deadline_s` bounds unary calls that bring no deadline.

        statuses: full name of a service -> the statuses of the errors that its methods raise.
        """
        self._statuses = {} if statuses is None else statuses
        self._default_deadline_s = default_deadline_s
        self._access = access

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Wrap the handler that the call will reach. A call that is not admitted gets one that reads no
        request: what strangers send is neither kept nor decoded."""
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None or method.startswith(OPEN_SERVICES):
            return handler
        try:
            caller = self._access.caller(handler_call_details.invocation_metadata)
        except Unavailable as error:
            return _refusing(grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE", str(error))
        if caller is None:
            return _refusing(grpc.StatusCode.UNAUTHENTICATED, "WRONG_API_KEY", _NO_KEY)
        if PLATFORM not in caller.scopes:
            message = _NO_SCOPE.format(name=caller.name, scopes=", ".join(sorted(caller.scopes)))
            return _refusing(grpc.StatusCode.PERMISSION_DENIED, "SCOPE_NOT_ALLOWED", message)
        if not self._access.admits(caller, method):
            message = _NOT_ALLOWED.format(
                role=_named(caller.role), method=method, roles=" or ".join(map(_named, callers_of(method)))
            )
            return _refusing(grpc.StatusCode.PERMISSION_DENIED, "ROLE_NOT_ALLOWED", message)
        set_caller(caller, method)  # gRPC asks, and runs what it gets, in the one task of the call
        return self._guarded(handler, method)

    def _guarded(self, handler: "Handler", method: str) -> "Handler":
        """Requests are decoded here, where what cannot be is refused as all else is."""
        codec, decode = {"response_serializer": handler.response_serializer}, handler.request_deserializer
        one, each = partial(_decoded, decode), partial(_each_decoded, decode)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._unary(handler.unary_unary, method, one), **codec)
        if handler.unary_stream:
            stream = self._stream(handler.unary_stream, method, one)
            return grpc.unary_stream_rpc_method_handler(stream, **codec)
        if handler.stream_unary:
            unary = self._unary(handler.stream_unary, method, each)
            return grpc.stream_unary_rpc_method_handler(unary, **codec)
        stream = self._stream(handler.stream_stream, method, each)
        return grpc.stream_stream_rpc_method_handler(stream, **codec)

    def _unary(self, behavior: Any, method: str, decode: Callable[[Any], Any]) -> Any:
        async def guarded(encoded: Any, context: Context) -> Any:
            async with domain_errors_as_status(context, self._table(method)), _read_to_end(encoded):
                request = decode(encoded)
                await _refuse_unknown_fields(request, context)
                request = self._watched(request, current_caller())
                if context.time_remaining() is not None:
                    return await behavior(request, context)
                return await self._bounded(behavior(request, context), context)

        return guarded

    def _stream(self, behavior: Any, method: str, decode: Callable[[Any], Any]) -> Any:
        async def guarded(encoded: Any, context: Context) -> AsyncIterator[Any]:
            async with domain_errors_as_status(context, self._table(method)):
                request = decode(encoded)
                await _refuse_unknown_fields(request, context)
                caller = current_caller()
                responses = behavior(self._watched(request, caller), context)
                async for response in self._watched(responses, caller):
                    yield response

        return guarded

    def _watched(self, messages: Any, caller: Caller) -> Any:
        """A request as it is, and so the messages of a caller whose key has no end."""
        ends = caller.may_end and not isinstance(messages, Message)
        return self._while_valid(messages, caller) if ends else messages

    async def _while_valid(self, messages: AsyncIterator[Any], caller: Caller) -> AsyncIterator[Any]:
        """The messages of a stream. Raises KeyEnded at the first one after the key's end."""
        async for message in messages:
            if not self._access.stands(caller):
                raise KeyEnded(caller)
            yield message

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

    def _table(self, method: str) -> StatusTable:
        return self._statuses.get(method.strip("/").rpartition("/")[0], {})


@asynccontextmanager
async def _read_to_end(encoded: Any) -> AsyncIterator[None]:
    """Of a call whose requests are a stream that it does not take: read the rest before the refusal is sent,
    for at most `_REST_S`.

    gRPC's client fails a write to a call that has ended, as INTERNAL, and drops the status that ended it: who
    still uploads would not learn why it was refused.
    """
    try:
        yield
    except grpc.aio.AbortError:  # the status is sent
        raise
    except Exception:
        await _rest(encoded)
        raise


async def _rest(encoded: Any) -> None:
    """Nothing of it is kept or decoded."""
    if isinstance(encoded, AsyncIterable):
        with suppress(TimeoutError):
            async with asyncio.timeout(_REST_S):
                async for _ in encoded:
                    pass


def _decoded(decode: Callable[[bytes], Any] | None, body: Any) -> Any:
    """Raises MalformedRequest."""
    try:
        return body if decode is None else decode(body)
    except DecodeError as error:
        raise MalformedRequest(f"the request is no message that this rpc takes: {error}") from error


async def _each_decoded(
    decode: Callable[[bytes], Any] | None, bodies: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    async for body in bodies:
        yield _decoded(decode, body)


async def _refuse_unknown_fields(request: Any, context: Context) -> None:
    unknown = unknown_field(request) if isinstance(request, Message) else None
    if unknown is not None:
        message = f"the request has {unknown}, which this server does not know; is the client newer?"
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "UNKNOWN_FIELD", message)
    wrong = wrong_time(request) if isinstance(request, Message) else None
    if wrong is not None:
        await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "WRONG_TIME", wrong)


def _refusing(code: grpc.StatusCode, reason: str, message: str) -> "Handler":
    """A handler for a call of any kind, which throws the requests away as they came."""

    async def refuse(encoded: Any, context: Context) -> AsyncIterator[Any]:
        await _rest(encoded)
        await abort(context, code, reason, message)
        yield  # what makes it a stream of answers

    return grpc.stream_stream_rpc_method_handler(refuse)


def _named(role: Role.ValueType) -> str:
    """`operator` of ROLE_OPERATOR."""
    return Role.Name(role).removeprefix("ROLE_").lower()


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
