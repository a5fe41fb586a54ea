"""Server interceptor: calls at once, of all and of one peer, and how long one may stall.

Calls without a valid key (health, reflection, and those that are refused) are counted apart, so that
strangers cannot take the places of callers.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from grpc_edge.access import current_rpc
from grpc_edge.limits import RpcLimits
from grpc_edge.status import abort

if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]
Context = grpc.aio.ServicerContext[Any, Any]

_REASON: Final = "TOO_MANY_CALLS"
_ALL: Final = "{pool} are at their limit of {most} calls at once; call again later, or raise {variable}"
_PEER: Final = (
    "{peer} has {most} calls at once here, the most of one peer; end some of {pool}, or raise {variable}"
)


_NO_REQUEST: Final = "no request came within {seconds:g} s (UPCYCLE_EDGE_BODY_S)"
_NOT_READ: Final = (
    "the client did not read for {seconds:g} s (UPCYCLE_EDGE_STALL_S), so the stream ended; call again"
)


@dataclass(slots=True)
class _Pool:
    """Calls that share limits."""

    name: str
    variable: str
    most: int
    most_per_peer: int
    calls: int = 0
    per_peer: Counter[str] = field(default_factory=Counter)

    def full(self) -> str:
        """What a call beyond the limit of all is told."""
        return _ALL.format(pool=self.name, most=self.most, variable=self.variable)

    def full_for(self, peer: str) -> str:
        """What a call beyond the limit of its peer is told."""
        variable = f"{self.variable}_PER_PEER"
        return _PEER.format(peer=peer, most=self.most_per_peer, pool=self.name, variable=variable)

    @contextmanager
    def place_of(self, peer: str) -> Iterator[None]:
        """Counts a call of the peer for as long as it lasts."""
        self.per_peer[peer] += 1
        try:
            yield
        finally:
            self.per_peer[peer] -= 1
            if not self.per_peer[peer]:
                del self.per_peer[peer]


class Admission(grpc.aio.ServerInterceptor):
    """Around the guard, which says by `current_rpc` whether it admits a call."""

    def __init__(self, limits: RpcLimits) -> None:
        self._limits = limits
        self._keyed = _Pool("calls of this server", "UPCYCLE_EDGE_RPCS", limits.rpcs, limits.rpcs_per_peer)
        self._keyless = _Pool(
            "calls without a valid key, such as those of health,",
            "UPCYCLE_EDGE_KEYLESS_RPCS",
            limits.keyless_rpcs,
            limits.keyless_rpcs_per_peer,
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Counts from here, before the request has arrived, to the end of the task that gRPC has per call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        is_admitted = bool(current_rpc())  # by the guard
        pool, task = self._keyed if is_admitted else self._keyless, _task_of_call()
        if pool.calls >= pool.most:
            return _turned_away(pool.full())
        pool.calls += 1
        task.add_done_callback(lambda _: self._ended(pool))
        return self._of_callers(handler, task) if is_admitted else self._of_strangers(handler)

    @staticmethod
    def _ended(pool: _Pool) -> None:
        pool.calls -= 1

    def _of_callers(self, handler: "Handler", task: "asyncio.Task[Any]") -> "Handler":
        """gRPC reads a single request before it runs the handler; a call whose request does not come gives
        its place back."""
        asked = asyncio.get_running_loop().call_later(self._limits.request_s, task.cancel)
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._one(handler.unary_unary, asked), **codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._many(handler.unary_stream, asked), **codec)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._one(handler.stream_unary, asked), **codec)
        return grpc.stream_stream_rpc_method_handler(self._many(handler.stream_stream, asked), **codec)

    def _of_strangers(self, handler: "Handler") -> "Handler":
        """As a stream, whatever it is, so that the peer is counted, and told, before its request has come."""
        behavior: Any = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )

        async def bounded(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            with await self._place(self._keyless, context):
                asked = requests if handler.request_streaming else await self._first(requests, context)
                answers: Any = behavior(asked, context)
                if not inspect.isawaitable(answers):
                    async for answer in self._sent(answers, context):
                        yield answer
                elif (answer := await answers) is not None:  # None: it wrote by itself, as Health.Watch does
                    yield answer

        return grpc.stream_stream_rpc_method_handler(
            bounded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _one(self, behavior: Any, asked: asyncio.TimerHandle) -> Any:
        async def bounded(request: Any, context: Context) -> Any:
            asked.cancel()
            with await self._place(self._keyed, context):
                return await behavior(request, context)

        return bounded

    def _many(self, behavior: Any, asked: asyncio.TimerHandle) -> Any:
        async def bounded(request: Any, context: Context) -> AsyncIterator[Any]:
            asked.cancel()
            with await self._place(self._keyed, context):
                async for answer in self._sent(behavior(request, context), context):
                    yield answer

        return bounded

    async def _first(self, requests: AsyncIterator[Any], context: Context) -> Any:
        try:
            async with asyncio.timeout(self._limits.request_s):
                async for request in requests:
                    return request
        except TimeoutError:
            pass
        message = _NO_REQUEST.format(seconds=self._limits.request_s)
        await abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "REQUEST_DID_NOT_COME", message)

    async def _sent(self, answers: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """Each is asked for when gRPC has taken the one before. For a client that does not read, the source
        of answers is closed in time; when it reads on, it is told."""
        loop, stalled = asyncio.get_running_loop(), _Stalled(answers)
        async for answer in answers:
            taken = loop.call_later(self._limits.stall_s, stalled.close)
            try:
                yield answer
            finally:
                taken.cancel()
            if stalled.closing is not None:
                message = _NOT_READ.format(seconds=self._limits.stall_s)
                await abort(context, grpc.StatusCode.DEADLINE_EXCEEDED, "ANSWERS_NOT_READ", message)

    async def _place(self, pool: _Pool, context: Context) -> AbstractContextManager[None]:
        peer = peer_of(context.peer())
        if pool.per_peer[peer] >= pool.most_per_peer and peer not in self._limits.fronts:
            await abort(context, grpc.StatusCode.UNAVAILABLE, _REASON, pool.full_for(peer))
        return pool.place_of(peer)


class _Stalled:
    """Closes a source of answers that waits, from outside."""

    def __init__(self, answers: AsyncIterator[Any]) -> None:
        self._answers: Any = answers
        self.closing: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Once."""
        self.closing = asyncio.ensure_future(self._answers.aclose())


def _turned_away(message: str) -> "Handler":
    """A handler for a call of any kind, of which nothing is read."""

    async def refuse(_: Any, context: Context) -> AsyncIterator[Any]:
        await abort(context, grpc.StatusCode.UNAVAILABLE, _REASON, message)
        yield  # what makes it a stream of answers

    return grpc.stream_stream_rpc_method_handler(refuse)


def _task_of_call() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("gRPC asked for a handler outside the task of a call")
    return task


def peer_of(address: str) -> str:
    """The host in what gRPC calls a peer: `ipv4:10.0.0.7:4711` is 10.0.0.7; others are as they are."""
    kind, _, rest = address.partition(":")
    return rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else address
