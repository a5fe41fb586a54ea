"""Bus edge: a record in, its reward or its failure out, then the environment is let go."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, Protocol

from google.protobuf.message import Message

from event_bus import Delivery, EventTooLarge, PoisonMessage
from reward_grader import telemetry, wire
from reward_grader.domain import (
    CannotGrade,
    FailureKind,
    Grade,
    Graded,
    GradeLater,
    GradeOutcome,
    GradingTask,
    clipped,
)
from service_kit.telemetry import mark_failed
from service_kit.waits import WaitLog
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_FAILURES_BEFORE_GIVING_UP: Final = 3
_MAX_INFO_CHARS: Final = 2000


class Facts(Protocol):
    """Where facts go."""

    async def publish(self, event: Message, *, model: str, event_id: str) -> object:
        """Returns when the fact is durable."""


class Grader(Protocol):
    """The use case."""

    def __call__(self, task: GradingTask) -> Awaitable[GradeOutcome]:
        """Grade one trajectory."""

    def release(self, task: GradingTask) -> Awaitable[None]:
        """Let its environment go."""


class RecordHandler:
    """Safe to redeliver: reward and failure share one event id, so the stream keeps the first of them."""

    def __init__(self, grade: Grader, facts: Facts, *, now: Callable[[], datetime]) -> None:
        self._grade = grade
        self._facts = facts
        self._now = now
        self._waits = WaitLog(log, "trajectories_wait")

    async def __call__(self, delivery: Delivery[TrajectoryRecorded]) -> None:
        """Returns when the outcome is published. Raises Unavailable, PoisonMessage."""
        recorded = delivery.message
        try:
            task = wire.task_from_wire(recorded, delivery.published_at)
        except wire.MalformedEvent as error:
            raise PoisonMessage(str(error)) from error
        with telemetry.GRADE_S.time(), telemetry.grading_span(task) as span:
            outcome = await self._outcome(task, delivery.num_delivered)
            match outcome:
                case Graded(grade):
                    telemetry.describe_grade(span, grade)
                    await self._announce_grade(recorded, grade)
                case CannotGrade(kind, detail):
                    mark_failed(span, kind, detail)
                    await self._announce_failure(recorded, outcome)
                    # After the announcement: a crash before it still finds the environment. A grade ended
                    # it already, and its first answer stays readable.
                    await self._grade.release(task)
                case GradeLater(delay_s, waiting_for):
                    self._count("later")
                    self._waits.say(waiting_for)
                    raise Unavailable(waiting_for, delay_s)

    async def _outcome(self, task: GradingTask, num_delivered: int) -> GradeOutcome:
        try:
            return await self._grade(task)
        except Exception as error:
            # A surprise is retried a few times; then the episode is settled, not left to the dead letters.
            if num_delivered < _FAILURES_BEFORE_GIVING_UP:
                raise
            log.exception("grading_gave_up", extra={"trajectory_id": task.trajectory_id})
            return CannotGrade(FailureKind.GRADER_ERROR, f"{type(error).__name__}: {error}")

    async def _announce_grade(self, recorded: TrajectoryRecorded, grade: Grade) -> None:
        """The reward, with as much of its tree as an event has room for."""
        self._count("graded")
        sizes = (
            clipped(grade, max_info_chars=_MAX_INFO_CHARS, with_children=True),
            clipped(grade, max_info_chars=0, with_children=False),
            Grade(grade.reward, grade.success),
        )
        for smaller in sizes:
            try:
                await self._publish(recorded, wire.graded_to_wire(recorded, smaller, self._now()))
                return
            except EventTooLarge:
                log.warning("reward_tree_cut", extra={"trajectory_id": recorded.trajectory_id})
        raise PoisonMessage(f"{recorded.trajectory_id} is too large to be announced, even without subscores")

    async def _announce_failure(self, recorded: TrajectoryRecorded, failure: CannotGrade) -> None:
        self._count("failed", failure.kind)
        log.warning(
            "episode_failed",
            extra={"episode_id": recorded.episode_id, "kind": failure.kind, "detail": failure.detail},
        )
        await self._publish(recorded, wire.failed_to_wire(recorded, failure, self._now()))

    async def _publish(self, recorded: TrajectoryRecorded, event: Message) -> None:
        event_id = wire.outcome_event_id(recorded)
        await self._facts.publish(event, model=recorded.model, event_id=event_id)

    def _count(self, outcome: str, kind: str = "") -> None:
        telemetry.TRAJECTORIES.labels(outcome, kind).inc()
