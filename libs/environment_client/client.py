"""Opening, using, grading and closing environments over gRPC: one channel per replica."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc
import grpc.aio

from blob_store import BlobRef
from blob_store.ref import to_wire as blob_to_wire
from environment_client import wire
from environment_client.errors import ReplicaUnreachable
from environment_client.types import JudgeAnswer, JudgeAsked, Lease, OpenedEnvironment
from episodes import EpisodeBroken, EpisodeFailure
from upcycle.api.environment.v1 import service_pb2
from upcycle.api.environment.v1.service_pb2_grpc import EnvironmentServiceStub
from upcycle.api.trajectory.v1.trajectory_pb2 import StateSnapshot, ToolCall, ToolResult
from upcycle.retrying import retry
from upcycle.rpc import connect

if TYPE_CHECKING:  # only the stubs know the asynchronous classes
    from upcycle.api.environment.v1.service_pb2_grpc import EnvironmentServiceAsyncStub

log = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 1.0
_ANSWER_MARGIN_S: Final = 30.0
"""In which a replica says that a call took longer than the tool's own limit."""


@dataclass(frozen=True, slots=True)
class EnvironmentTimeouts:
    """Longest calls, in seconds."""

    open_s: float = 60.0
    tool_s: float = 60.0
    grade_s: float = 60.0
    close_s: float = 5.0
    unreachable_s: float = 10.0
    """How long a replica may be unreachable in a tool call before its environment counts as lost."""


class EnvironmentClient:
    """The first call connects, `stop` closes all channels."""

    def __init__(
        self, address: str = "", timeouts: EnvironmentTimeouts | None = None, *, api_key: str | None = None
    ) -> None:
        """address: where episodes are opened; each lease then names the replica that holds it. api_key: of a
        service."""
        self._address = address
        self._api_key = api_key
        self._timeouts = timeouts or EnvironmentTimeouts()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._stubs: dict[str, EnvironmentServiceAsyncStub] = {}

    async def stop(self) -> None:
        """Close all channels; calls in flight get a second to end."""
        for channel in self._channels.values():
            await channel.close(grace=1.0)

    async def open_episode(self, episode_id: str) -> OpenedEnvironment:
        """Start the scenario of a planned episode. Raises EpisodeNotPlanned, Unavailable, EpisodeBroken."""
        request = service_pb2.OpenRequest(episode_id=episode_id)
        try:
            response = await self._stub(self._address).Open(request, timeout=self._timeouts.open_s)
        except grpc.aio.AioRpcError as error:
            raise wire.open_error(error, f"open {episode_id}") from error
        return wire.opened_from_wire(response, self._address)

    async def call_tool(
        self, lease: Lease, call: ToolCall, *, limit_s: float | None = None, own_limit_s: float | None = None
    ) -> ToolResult:
        """Run one tool, and ask again while the replica is unreachable: the call id makes a repeat harmless.

        limit_s: a longer call ends as tool_timeout, if the replica can do that. own_limit_s: of the tool; the
        replica keeps it. Raises Unavailable, EpisodeBroken.
        """
        wait_s = max(self._timeouts.tool_s, 0.0 if own_limit_s is None else own_limit_s + _ANSWER_MARGIN_S)
        try:
            return await retry(
                lambda: self._call_tool_once(lease, call, limit_s, wait_s),
                budget_s=self._timeouts.unreachable_s,
                first_pause_s=_FIRST_RETRY_S,
                max_pause_s=_MAX_RETRY_S,
            )
        except ReplicaUnreachable as error:
            detail = f"{lease.address} is unreachable: {error}"
            raise EpisodeBroken(EpisodeFailure.ENVIRONMENT_LOST, detail) from error

    async def last_state(self, lease: Lease) -> StateSnapshot:
        """The environment's state before the grade. Never raises: what failed is its note, and no episode
        fails by it."""
        request = service_pb2.ReadLastStateRequest(lease_id=lease.lease_id)
        try:
            response = await self._stub(lease.address).ReadLastState(request, timeout=self._timeouts.close_s)
        except grpc.aio.AioRpcError as error:
            return StateSnapshot(note=f"it could not be read: {error.code().name}: {error.details()}")
        return response.state

    async def grade(self, lease: Lease, body: BlobRef) -> service_pb2.GradeResponse:
        """The environment's own reward for the stored trajectory, the same each time it is asked.

        One that takes longer than a call is asked for again: the replica keeps its answer.
        Raises ReplicaUnreachable, Unavailable, EpisodeBroken.
        """
        request = service_pb2.GradeRequest(lease_id=lease.lease_id, body=blob_to_wire(body))
        try:
            return await self._stub(lease.address).Grade(request, timeout=self._timeouts.grade_s)
        except grpc.aio.AioRpcError as error:
            raise wire.grade_error(error, body, lease) from error

    async def grade_judged(
        self, lease: Lease, body: BlobRef, answer: JudgeAnswer | None = None, *, answers_within_s: float
    ) -> service_pb2.GradeResponse | JudgeAsked:
        """The same of a caller that asks judges: the grade, or the question that it waits for. Call again
        with its answer, within so many seconds. A repeat gets what waits: the question or the grade.

        A replica of 0.3.0 knows no judges, and grades without. Raises ReplicaUnreachable, Unavailable,
        EpisodeBroken.
        """
        request = service_pb2.GradeJudgedRequest(
            lease_id=lease.lease_id,
            body=blob_to_wire(body),
            answer=None if answer is None else wire.answer_to_wire(answer),
            answers_within_s=answers_within_s,
        )
        try:
            call = self._stub(lease.address).GradeJudged(request, timeout=self._timeouts.grade_s)
            return wire.judged_from_wire(await call)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return await self.grade(lease, body)
            raise wire.grade_error(error, body, lease) from error

    async def close(self, lease: Lease) -> None:
        """End the environment. Never raises: a lease that cannot be closed expires by itself."""
        request = service_pb2.CloseRequest(lease_id=lease.lease_id)
        try:
            await self._stub(lease.address).Close(request, timeout=self._timeouts.close_s)
        except (
            grpc.aio.AioRpcError,
            grpc.aio.UsageError,
        ) as error:  # UsageError: our channel is closed already
            if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.NOT_FOUND:
                log.warning("lease_not_closed", extra={"lease_id": lease.lease_id, "why": str(error)})

    async def _call_tool_once(
        self, lease: Lease, call: ToolCall, limit_s: float | None, wait_s: float
    ) -> ToolResult:
        request = service_pb2.CallToolRequest(
            lease_id=lease.lease_id,
            call_id=call.call_id,
            name=call.name,
            arguments_json=call.arguments_json,
            limit_s=limit_s if lease.limits_calls else None,
        )
        try:
            response = await self._stub(lease.address).CallTool(request, timeout=wait_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                return ToolResult(
                    call_id=call.call_id, content="error: the result is too large", is_error=True
                )
            raise wire.lease_error(error, f"tool {call.name}", lease) from error
        return ToolResult(
            call_id=call.call_id,
            content=response.content,
            is_error=response.is_error,
            duration_s=response.duration_s,
            state=response.state if response.HasField("state") else None,
        )

    def _stub(self, address: str) -> "EnvironmentServiceAsyncStub":
        if address not in self._stubs:
            self._channels[address] = connect(address, api_key=self._api_key)
            self._stubs[address] = EnvironmentServiceStub(self._channels[address])
        return self._stubs[address]
