"""EnvironmentService: leases over gRPC."""

from collections.abc import Callable
from typing import Any

import grpc.aio

from blob_store import ref as blob_ref
from scenario_runner import telemetry
from scenario_runner.usecases.leases import Leases
from scenario_runner.wire.environments import (
    answer_from_wire,
    grade_to_wire,
    judged_to_wire,
    opened_to_wire,
    state_to_wire,
)
from upcycle.api.environment.v1 import service_pb2 as pb
from upcycle.api.environment.v1.service_pb2_grpc import EnvironmentServiceServicer

Context = grpc.aio.ServicerContext[Any, Any]


class EnvironmentServicer(EnvironmentServiceServicer):
    """address: gives host:port of this replica, where its leases can be used; known once it listens."""

    def __init__(self, leases: Leases, *, address: Callable[[], str]) -> None:
        self._leases = leases
        self._address = address

    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenResponse:
        """Start an episode's environment."""
        with telemetry.CALL_S.labels("open").time():
            return opened_to_wire(await self._leases.open(request.episode_id), self._address())

    async def CallTool(self, request: pb.CallToolRequest, context: Context) -> pb.CallToolResponse:
        """Call a tool, once per call id."""
        with telemetry.CALL_S.labels("call_tool").time():
            outcome = await self._leases.call_tool(
                request.lease_id,
                request.call_id,
                request.name,
                request.arguments_json,
                limit_s=request.limit_s if request.HasField("limit_s") else None,
            )
            return pb.CallToolResponse(
                content=outcome.content,
                is_error=outcome.is_error,
                truncated=outcome.truncated,
                duration_s=outcome.duration_s,
                state=state_to_wire(outcome.state),
            )

    async def ReadLastState(
        self, request: pb.ReadLastStateRequest, context: Context
    ) -> pb.ReadLastStateResponse:
        """The state of an environment before its grade."""
        state = await self._leases.last_state(request.lease_id)
        return pb.ReadLastStateResponse(state=state_to_wire(state))

    async def Grade(self, request: pb.GradeRequest, context: Context) -> pb.GradeResponse:
        """Grade a stored trajectory, once per lease."""
        with telemetry.CALL_S.labels("grade").time():
            body = blob_ref.from_wire(request.body)
            return grade_to_wire(await self._leases.grade(request.lease_id, body))

    async def GradeJudged(self, request: pb.GradeJudgedRequest, context: Context) -> pb.GradeJudgedResponse:
        """Grade a stored trajectory with the judges that the caller asks."""
        with telemetry.CALL_S.labels("grade").time():
            outcome = await self._leases.grade_judged(
                request.lease_id,
                blob_ref.from_wire(request.body),
                answer_from_wire(request.answer) if request.HasField("answer") else None,
                answers_within_s=request.answers_within_s,
            )
            return judged_to_wire(outcome)

    async def Close(self, request: pb.CloseRequest, context: Context) -> pb.CloseResponse:
        """End an environment."""
        await self._leases.close(request.lease_id)
        return pb.CloseResponse()
