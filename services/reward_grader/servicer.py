"""GradingService: rewards that clients give to recorded sessions. Decode, grade, encode."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import grpc
import grpc.aio

from event_bus import Decision, EventBus
from grpc_edge import StatusTable
from identities import events
from reward_grader import telemetry, wire
from reward_grader.adapters.recorded_sessions import RecordedSessions
from reward_grader.domain import SessionGraded, UnknownSession
from service_kit.errors import InvalidRequest
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import service_pb2_grpc
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

Context = grpc.aio.ServicerContext[Any, Any]
STATUS_OF: Final[StatusTable] = {
    UnknownSession: grpc.StatusCode.NOT_FOUND,
    SessionGraded: grpc.StatusCode.ALREADY_EXISTS,
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
}


class GradingServicer(service_pb2_grpc.GradingServiceServicer):
    """The first grade of a session stands: it is a decision, as every outcome of an episode is."""

    def __init__(self, sessions: RecordedSessions, bus: EventBus, *, now: Callable[[], datetime]) -> None:
        self._sessions = sessions
        self._bus = bus
        self._now = now

    async def GradeSession(
        self, request: pb.GradeSessionRequest, context: Context
    ) -> pb.GradeSessionResponse:
        """Safe to repeat."""
        given = wire.session_grade_from_wire(request)
        body, ref = await self._sessions.read(given.session_id, given.key_id)
        grade = wire.session_graded_to_wire(given, body, ref, self._now())
        episode = grade.episode
        outcome = events.episode_outcome(episode.episode_id)
        (stored,) = await self._bus.decide([Decision(grade, episode.model, outcome)])
        if not isinstance(stored, TrajectoryGraded):
            raise SessionGraded(
                f"session {given.session_id!r} is settled: no reward came within its retention, "
                "so it has none"
            )
        if not wire.is_same_grade(stored, grade):
            raise SessionGraded(
                f"session {given.session_id!r} has the reward {stored.reward:g} since "
                f"{stored.graded_at.ToJsonString()}, and a reward is given once: "
                f"{given.grade.reward:g}, or other subscores, group, split or success than then, are refused"
            )
        telemetry.TRAJECTORIES.labels("graded", "").inc()
        return pb.GradeSessionResponse(
            trajectory_id=stored.episode.trajectory_id,
            group_id=stored.episode.group_id,
            score=stored.reward,
            success=stored.success,
        )
