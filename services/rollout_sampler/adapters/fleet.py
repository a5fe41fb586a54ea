"""Environments over gRPC: one channel per address, statuses turned into reactions."""

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from rollout_sampler import wire
from rollout_sampler.domain import FailureKind, OpenedEnvironment, ToolCall, ToolResult
from rollout_sampler.ports import EnvironmentLost, EpisodeBroken, NotPlanned
from rollout_sampler.ports import Unavailable as LaterUnavailable
from upcycle.api.environment.v1 import service_pb2
from upcycle.api.environment.v1.service_pb2_grpc import EnvironmentServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import CallTimedOut, RemoteError, RemoteNotFound, connect, remote_errors

if TYPE_CHECKING:  # only the stubs know the asynchronous classes
    from upcycle.api.environment.v1.service_pb2_grpc import EnvironmentServiceAsyncStub

log = logging.getLogger(__name__)

_BUSY_DELAY_S: Final = 1.0
_AWAY_DELAY_S: Final = 2.0
_FIRST_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 1.0
_NOT_PLANNED: Final = "not_planned"


@dataclass(frozen=True, slots=True)
class FleetTimings:
    """Deadlines of calls to environments, in seconds."""

    open_s: float = 60.0
    tool_s: float = 60.0
    close_s: float = 5.0
    patience_s: float = 10.0
    """How long a replica that holds a lease may be unreachable before the lease counts as lost."""


class GrpcEnvironments:
    """Implements ports.Environments."""

    def __init__(self, address: str, timings: FleetTimings) -> None:
        """`address`: where episodes are opened; each lease then names the replica that holds it."""
        self._address = address
        self._timings = timings
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[str, EnvironmentServiceAsyncStub] = {}

    async def open(self, episode_id: str) -> OpenedEnvironment:
        """Start the scenario of a planned episode."""
        request = service_pb2.OpenRequest(episode_id=episode_id)
        try:
            with remote_errors(f"open {episode_id}"):
                response = await self._stub(self._address).Open(request, timeout=self._timings.open_s)
        except (RemoteError, Unavailable) as error:
            raise _cannot_open(error) from error
        try:
            return wire.environment_from_wire(response, self._address)
        except ValueError as error:
            raise EpisodeBroken(FailureKind.SCENARIO_ERROR, f"the environment's tools: {error}") from error

    async def call_tool(self, environment: OpenedEnvironment, call: ToolCall) -> ToolResult:
        """Run one tool, asking again while the replica is unreachable: the call id makes that harmless."""
        request = service_pb2.CallToolRequest(
            lease_id=environment.lease_id,
            call_id=call.call_id,
            name=call.name,
            arguments_json=call.arguments_json,
        )
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._timings.patience_s
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                return await self._call_once(environment.address, request)
            except CallTimedOut as error:
                raise _broken(error) from error
            except Unavailable as error:
                if loop.time() + delay_s > give_up_at:
                    raise EnvironmentLost(f"{environment.address} is unreachable: {error}") from error
            await asyncio.sleep(delay_s)
            delay_s = min(_MAX_RETRY_S, delay_s * 2)

    async def close(self, environment: OpenedEnvironment) -> None:
        """Let the process go; without an answer the lease lapses by itself."""
        request = service_pb2.CloseRequest(lease_id=environment.lease_id)
        try:
            with remote_errors(f"close lease {environment.lease_id}"):
                await self._stub(environment.address).Close(request, timeout=self._timings.close_s)
        except RemoteNotFound:
            return
        except (
            RemoteError,
            Unavailable,
            grpc.aio.UsageError,
        ) as error:  # UsageError: our channel is closed already
            log.warning("lease_not_closed", extra={"lease_id": environment.lease_id, "why": str(error)})

    async def stop(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close(grace=1.0)

    async def _call_once(self, address: str, request: service_pb2.CallToolRequest) -> ToolResult:
        try:
            with remote_errors(f"tool {request.name}"):
                response = await self._stub(address).CallTool(request, timeout=self._timings.tool_s)
        except RemoteError as error:
            if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
                return ToolResult(request.call_id, "error: the result is too large", True, 0.0)
            raise _broken(error) from error
        return ToolResult(request.call_id, response.content, response.is_error, response.duration_s)

    def _stub(self, address: str) -> "EnvironmentServiceAsyncStub":
        stub = self._stubs.get(address)
        if stub is None:
            channel = self._channels[address] = connect(address)
            stub = self._stubs[address] = EnvironmentServiceStub(channel)
        return stub


def _cannot_open(error: RemoteError | Unavailable) -> Exception:
    if isinstance(error, CallTimedOut):
        return _broken(error)
    if isinstance(error, Unavailable):
        return LaterUnavailable("the environment service", _AWAY_DELAY_S)
    kind = error.failure_kind
    match error.code:
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return LaterUnavailable(f"a free environment slot ({error.message})", _BUSY_DELAY_S)
        case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.NOT_FOUND if kind in (None, _NOT_PLANNED):
            return NotPlanned(str(error))
        case _:
            return _broken(error)


def _broken(error: RemoteError | CallTimedOut) -> EpisodeBroken:
    """The failure kind that the environment service sent, or else the one that the status implies."""
    if isinstance(error, CallTimedOut):
        return EpisodeBroken(FailureKind.TIMEOUT, str(error))
    if error.failure_kind is not None:
        return EpisodeBroken(error.failure_kind, str(error))
    match error.code:
        case grpc.StatusCode.NOT_FOUND | grpc.StatusCode.FAILED_PRECONDITION:
            return EnvironmentLost(str(error))
        case _:
            return EpisodeBroken(FailureKind.SCENARIO_ERROR, str(error))
