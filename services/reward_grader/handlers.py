"""Bus edge: a record in, its reward or its failure out, then the environment is closed."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final, assert_never

from google.protobuf.message import Message

from episodes import EpisodeFailure, episode_failed
from event_bus import CurrentDelivery, Decision, EventBus, EventRouter, EventTooLarge, PoisonMessage
from event_bus.topology import REWARD_GRADER
from identities import events
from identities.entities import is_recorded_run
from reward_grader import telemetry, wire
from reward_grader.domain import CannotGrade, Grade, Graded, GradeOutcome, GradingTask, clipped
from reward_grader.usecases import GradeTrajectory
from service_kit.errors import as_errors
from service_kit.telemetry import mark_failed
from service_kit.waits import WaitLog
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryRecorded
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_MAX_INFO_CHARS: Final = 2000


def trajectory_router(
    grade: GradeTrajectory, bus: EventBus, *, now: Callable[[], datetime], slots: int
) -> EventRouter:
    """Grades recorded trajectories. Safe to redeliver: the first outcome of an episode wins."""
    router = EventRouter()
    grading = Grading(grade, bus, now)

    @router.subscriber(REWARD_GRADER, slots=slots)
    async def on_trajectory_recorded(event: TrajectoryRecorded, delivery: CurrentDelivery) -> None:
        """Returns when the outcome is published. Raises Unavailable, PoisonMessage."""
        if is_recorded_run(event.episode.run_id):  # its client grades it
            return
        task = wire.task_from_wire(event, delivery.published_at)
        await grading.grade_and_publish(event, task, delivery.is_last_try)

    return router


class Grading:
    """Grades one trajectory and publishes its outcome."""

    def __init__(self, grade: GradeTrajectory, bus: EventBus, now: Callable[[], datetime]) -> None:
        self._grade = grade
        self._bus = bus
        self._now = now
        self._waits = WaitLog(log, "trajectories_wait")

    async def grade_and_publish(
        self, recorded: TrajectoryRecorded, task: GradingTask, is_last_try: bool
    ) -> None:
        """Returns when the outcome is published. Raises Unavailable, PoisonMessage."""
        with telemetry.GRADE_S.time(), telemetry.grading_span(task) as span:
            outcome = await self._outcome(task, is_last_try)
            match outcome:
                case Graded(grade):
                    telemetry.describe_grade(span, grade)
                    await self._publish_grade(recorded, grade)
                case CannotGrade(kind, detail):
                    mark_failed(span, kind, detail)
                    await self._publish_failure(recorded, outcome)
                    # Closed after publishing, so that a crash before it still finds the environment. A grade
                    # needs no close: it ended the environment, whose first answer stays readable.
                    await self._grade.release(task)
                case _:
                    assert_never(outcome)

    async def _outcome(self, task: GradingTask, is_last_try: bool) -> GradeOutcome:
        try:
            with as_errors():
                return await self._grade(task)
        except Unavailable as error:
            telemetry.TRAJECTORIES.labels("later", "").inc()
            self._waits.say(error.waiting_for)
            raise
        except Exception as error:
            # A bug is retried a few times; then the episode fails, so that its group does not wait for it.
            if not is_last_try:
                raise
            log.exception("grading_gave_up", extra={"trajectory_id": task.identity.trajectory_id})
            return CannotGrade(EpisodeFailure.GRADER_ERROR, f"{type(error).__name__}: {error}")

    async def _publish_grade(self, recorded: TrajectoryRecorded, grade: Grade) -> None:
        """The reward, with as much of its tree as an event has room for."""
        kind = "" if grade.failure is None else EpisodeFailure.label(grade.failure.kind)
        telemetry.TRAJECTORIES.labels("graded", kind).inc()
        trajectory_id = recorded.episode.trajectory_id
        sizes = (
            clipped(grade, max_info_chars=_MAX_INFO_CHARS, with_children=True),
            clipped(grade, max_info_chars=0, with_children=False),
            Grade(grade.reward, grade.success, failure=grade.failure),
        )
        for smaller in sizes:
            try:
                await self._publish(recorded, wire.graded_to_wire(recorded, smaller, self._now()))
                return
            except EventTooLarge:
                log.warning("reward_tree_cut", extra={"trajectory_id": trajectory_id})
        raise PoisonMessage(f"the grade of {trajectory_id} is too large for an event, even without subscores")

    async def _publish_failure(self, recorded: TrajectoryRecorded, failure: CannotGrade) -> None:
        telemetry.TRAJECTORIES.labels("failed", EpisodeFailure.label(failure.kind)).inc()
        episode_id, kind, detail = recorded.episode.episode_id, failure.kind, failure.detail
        log.warning("episode_failed", extra={"episode_id": episode_id, "kind": kind, "detail": detail})
        at = self._now()
        event = episode_failed(
            recorded.episode,
            failure.kind,
            failure.detail,
            reported_by="reward_grader",
            at=at,
            usage=wire.usage_until(recorded, at),
        )
        await self._publish(recorded, event)

    async def _publish(self, recorded: TrajectoryRecorded, event: Message) -> None:
        """Unless an outcome of the episode is decided: the planner waits for no grade after its deadline."""
        episode = recorded.episode
        decision = Decision(event, episode.model, events.episode_outcome(episode.episode_id))
        (stored,) = await self._bus.decide([decision])
        if stored is not None and type(stored) is not type(event):
            extra = {"episode_id": episode.episode_id, "stored": stored.DESCRIPTOR.name}
            log.warning("outcome_came_too_late", extra=extra)
