"""Bus edge: a command in, the fact of its outcome out."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, Protocol

from google.protobuf.message import Message

from event_bus import Delivery, PoisonMessage
from rollout_sampler import telemetry, wire
from rollout_sampler.domain import (
    EpisodeTask,
    Failed,
    FailureKind,
    NotWanted,
    PlayOutcome,
    Recorded,
    TryLater,
)
from service_kit.idleness import SlotMeter
from service_kit.telemetry import mark_failed
from service_kit.waits import WaitLog
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_FAILURES_BEFORE_GIVING_UP: Final = 3
_SENT_AGAIN_AFTER_S: Final = 10.0


class Facts(Protocol):
    """Where facts go."""

    async def publish(self, event: Message, *, model: str, event_id: str) -> object:
        """Returns when the fact is durable."""


class Play(Protocol):
    """The use case."""

    def __call__(self, task: EpisodeTask, *, may_be_stored: bool) -> Awaitable[PlayOutcome]:
        """Play one episode."""


class EpisodeHandler:
    """Plays what is asked for, and says how it ended. Safe to redeliver: the record is written once."""

    def __init__(
        self, pool: str, play: Play, facts: Facts, *, now: Callable[[], datetime], slots: int = 1
    ) -> None:
        """slots: episodes that are played at once."""
        self._pool = pool
        self._meter = SlotMeter(slots)
        telemetry.IDLE_RATIO.labels(pool).set_function(self._meter.idle_ratio)
        self._play = play
        self._facts = facts
        self._now = now
        self._waits = WaitLog(log, "episodes_wait")

    async def __call__(self, delivery: Delivery[EpisodeRequested]) -> None:
        """Returns when the outcome is published. Raises Unavailable, PoisonMessage."""
        try:
            task = wire.task_from_wire(delivery.message)
        except wire.MalformedRequest as error:
            raise PoisonMessage(str(error)) from error
        with (
            self._meter.playing(),
            telemetry.IN_FLIGHT.labels(self._pool).track_inprogress(),
            telemetry.agent_span(task) as span,
        ):
            outcome = await self._outcome(task, delivery)
            if isinstance(outcome, Failed):
                mark_failed(span, outcome.kind, outcome.detail)
            await self._announce(task, outcome)

    async def _outcome(self, task: EpisodeTask, delivery: Delivery[EpisodeRequested]) -> PlayOutcome:
        try:
            return await self._play(task, may_be_stored=self._came_before(task, delivery))
        except Exception as error:
            # A surprise is retried a few times; then the episode is settled, not left to the dead letters.
            if delivery.num_delivered < _FAILURES_BEFORE_GIVING_UP:
                raise
            log.exception("episode_gave_up", extra={"episode_id": task.episode_id})
            return Failed(FailureKind.SAMPLER_ERROR, f"{type(error).__name__}: {error}")

    @staticmethod
    def _came_before(task: EpisodeTask, delivery: Delivery[EpisodeRequested]) -> bool:
        """A redelivery, or a command that the planner sent again long after the episode was requested.

        Its record may be there already; a first command that only waited in the queue has none to look for.
        """
        if delivery.num_delivered > 1 or task.requested_at is None:
            return True
        return (delivery.published_at - task.requested_at).total_seconds() > _SENT_AGAIN_AFTER_S

    async def _announce(self, task: EpisodeTask, outcome: PlayOutcome) -> None:
        model = task.policy.model
        match outcome:
            case Recorded(facts):
                self._count("recorded")
                event = wire.recorded_to_wire(task, facts)
                await self._facts.publish(event, model=model, event_id=wire.recorded_event_id(task))
            case Failed(kind, detail):
                self._count("failed", kind)
                log.warning(
                    "episode_failed", extra={"episode_id": task.episode_id, "kind": kind, "detail": detail}
                )
                failed = wire.failed_to_wire(task, outcome, self._now())
                await self._facts.publish(failed, model=model, event_id=wire.outcome_event_id(task))
            case NotWanted(why):
                self._count("not_wanted")
                log.info("episode_not_wanted", extra={"episode_id": task.episode_id, "why": why})
            case TryLater(delay_s, waiting_for):
                self._count("later")
                telemetry.WAITS.labels(self._pool).inc()
                self._waits.say(waiting_for)
                raise Unavailable(waiting_for, delay_s)

    def _count(self, outcome: str, kind: str = "") -> None:
        telemetry.EPISODES.labels(self._pool, outcome, kind).inc()
