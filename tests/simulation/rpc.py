"""gRPC without sockets: the generated stubs call the real servicers, and errors become the same statuses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

import grpc
import grpc.aio
from tests.simulation.network import SimulatedNetwork
from tests.simulation.virtual_time import SimulatedProcess, VirtualLoop

from grpc_edge.status import StatusTable, domain_errors_as_status

_TIMEOUT_S: Final = 10.0
Metadata = Sequence[tuple[str, str]]


class _Aborted(grpc.aio.AbortError):
    """The servicer ended the call with a status."""

    def __init__(self, code: grpc.StatusCode, details: str, trailing: Any) -> None:
        super().__init__()
        self.status = (code, details, trailing)


class _Context:
    """What servicers use of a ServicerContext."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        raise _Aborted(code, details, trailing_metadata)

    def time_remaining(self) -> float:
        return _TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Served:
    """A servicer and the process that it lives in."""

    process: SimulatedProcess
    servicer: Any
    statuses: StatusTable


class BothServicers:
    """Several servicers at one address, as one gRPC server has them."""

    def __init__(self, *servicers: object) -> None:
        self._servicers = servicers

    def __getattr__(self, method: str) -> Callable[..., Any]:
        found = (getattr(one, method, None) for one in self._servicers)
        return next(cast(Callable[..., Any], one) for one in found if one is not None)


class SimulatedPeers:
    """Who serves at which address."""

    def __init__(self, loop: VirtualLoop, network: SimulatedNetwork) -> None:
        self._loop = loop
        self._network = network
        self._served: dict[str, list[Served]] = {}

    def serve(self, address: str, process: SimulatedProcess, servicer: Any, statuses: StatusTable) -> None:
        """Of the lives that are not over, the newest answers."""
        others = [one for one in self._served.get(address, ()) if not one.process.is_dead]
        self._served[address] = [*others, Served(process, servicer, statuses)]

    def channel(self, address: str, *, api_key: object = None) -> Any:
        """What a generated stub is made with. api_key: as `connect` takes it; no key is checked here."""
        return _Channel(self, address)

    async def call(
        self, address: str, method: str, request: Any, timeout_s: float, metadata: Metadata = ()
    ) -> Any:
        """Raises AioRpcError: UNAVAILABLE where nothing came back, else the status of the answer."""
        return await self._network.conversation(
            address,
            self._answered(address, method, request, _Context(metadata)),
            timeout_s=timeout_s,
            lost=_unavailable,
        )

    async def _answered(self, address: str, method: str, request: Any, context: Any) -> Any:
        living = [one for one in self._served.get(address, ()) if not one.process.is_dead]
        if not living:
            raise _unavailable()
        served = living[-1]
        answer: asyncio.Future[Any] = self._loop.create_future()
        work = self._handled(served, method, request, context, answer)
        self._loop.spawn(served.process, work)
        return await self._unless_dead(served.process, answer)

    async def _unless_dead(self, process: SimulatedProcess, answer: asyncio.Future[Any]) -> Any:
        """A connection to a process that dies is closed; one to a frozen process stays open."""
        while True:
            done, _ = await asyncio.wait({answer}, timeout=1.0)
            if done:
                return answer.result()
            if process.is_dead:
                raise _unavailable()

    async def _handled(
        self, served: Served, method: str, request: Any, context: Any, answer: asyncio.Future[Any]
    ) -> None:
        try:
            async with domain_errors_as_status(context, served.statuses):
                reply = await getattr(served.servicer, method)(request, context)
        except _Aborted as aborted:
            self._loop.call_soon(_fail, answer, _rpc_error(*aborted.status))
        else:
            self._loop.call_soon(_succeed, answer, reply)


class _Channel:
    """Calls by the last part of the method's path."""

    def __init__(self, peers: SimulatedPeers, address: str) -> None:
        self._peers = peers
        self._address = address

    def unary_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any, **_: object
    ) -> Callable[..., Awaitable[Any]]:
        method = path.rpartition("/")[2]

        async def call(
            request: Any, timeout: float | None = None, metadata: Metadata = (), **_: object
        ) -> Any:
            copy = type(request).FromString(request_serializer(request))
            reply = await self._peers.call(self._address, method, copy, timeout or _TIMEOUT_S, metadata)
            return response_deserializer(reply.SerializeToString())

        return call

    def unary_stream(self, path: str, **_: object) -> Callable[..., AsyncIterator[Any]]:
        def call(*_: object) -> AsyncIterator[Any]:
            raise NotImplementedError(f"{path}: no part of the simulation watches")

        return call

    stream_stream = stream_unary = unary_stream

    async def close(self, grace: float | None = None) -> None:
        """Nothing is open."""


def _succeed(answer: asyncio.Future[Any], reply: Any) -> None:
    if not answer.done():
        answer.set_result(reply)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _unavailable() -> grpc.aio.AioRpcError:
    return _rpc_error(grpc.StatusCode.UNAVAILABLE, "no process answers", ())


def _rpc_error(code: grpc.StatusCode, details: str, trailing: Any) -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata(*trailing)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details)
