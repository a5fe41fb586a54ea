"""Environments over gRPC: one channel per address, statuses turned into reactions."""

import logging
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from reward_grader import wire
from reward_grader.domain import FailureKind, Grade, GradingTask, Transcript
from reward_grader.ports import EnvironmentAway, EpisodeBroken
from upcycle.api.environment.v1 import service_pb2
from upcycle.api.environment.v1.service_pb2_grpc import EnvironmentServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import CallTimedOut, RemoteError, RemoteNotFound, connect, remote_errors

if TYPE_CHECKING:  # only the stubs know the asynchronous classes
    from upcycle.api.environment.v1.service_pb2_grpc import EnvironmentServiceAsyncStub

log = logging.getLogger(__name__)

_AWAY_DELAY_S: Final = 2.0
_CLOSE_S: Final = 5.0


class GrpcEnvironments:
    """Implements ports.Environments."""

    def __init__(self, *, grade_timeout_s: float) -> None:
        self._grade_timeout_s = grade_timeout_s
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[str, EnvironmentServiceAsyncStub] = {}

    async def grade(self, task: GradingTask, transcript: Transcript) -> Grade:
        """The environment's own reward."""
        request = service_pb2.GradeRequest(
            lease_id=task.lease_id, answer=transcript.answer, transcript=transcript.wire
        )
        try:
            with remote_errors(f"grade {task.trajectory_id}"):
                stub = self._stub(task.environment_address)
                response = await stub.Grade(request, timeout=self._grade_timeout_s)
        except (RemoteError, Unavailable) as error:
            raise _reaction(error, task) from error
        return wire.grade_from_wire(response)

    async def close(self, task: GradingTask) -> None:
        """Let the process go; without an answer the lease lapses by itself."""
        request = service_pb2.CloseRequest(lease_id=task.lease_id)
        try:
            with remote_errors(f"close lease {task.lease_id}"):
                await self._stub(task.environment_address).Close(request, timeout=_CLOSE_S)
        except RemoteNotFound:
            return
        except (
            RemoteError,
            Unavailable,
            grpc.aio.UsageError,
        ) as error:  # UsageError: our channel is closed already
            log.warning("lease_not_closed", extra={"lease_id": task.lease_id, "why": str(error)})

    async def stop(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close(grace=1.0)

    def _stub(self, address: str) -> "EnvironmentServiceAsyncStub":
        stub = self._stubs.get(address)
        if stub is None:
            channel = self._channels[address] = connect(address)
            stub = self._stubs[address] = EnvironmentServiceStub(channel)
        return stub


def _reaction(error: RemoteError | Unavailable, task: GradingTask) -> Exception:
    """The failure kind that the environment service sent, or else the one that the status implies."""
    if isinstance(error, CallTimedOut):
        return EpisodeBroken(FailureKind.TIMEOUT, str(error))
    if isinstance(error, Unavailable):
        return EnvironmentAway(f"environments at {task.environment_address}", _AWAY_DELAY_S)
    if error.failure_kind is not None:
        return EpisodeBroken(error.failure_kind, str(error))
    match error.code:
        case grpc.StatusCode.NOT_FOUND | grpc.StatusCode.FAILED_PRECONDITION:
            return EpisodeBroken(FailureKind.ENVIRONMENT_LOST, str(error))
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
            return EpisodeBroken(FailureKind.REWARD_INVALID, str(error))
        case _:
            return EpisodeBroken(FailureKind.SCENARIO_ERROR, str(error))
