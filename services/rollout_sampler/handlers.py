"""Bus edge: a command in, the fact of its outcome out."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import assert_never

from episodes import EpisodeFailure, episode_failed
from event_bus import (
    ConsumerSpec,
    CurrentDelivery,
    Decision,
    Delivery,
    EventBus,
    EventRouter,
    Needs,
    QueueSubscriber,
)
from identities import events
from rollout_sampler import telemetry, wire
from rollout_sampler.domain import EpisodeTask, Failed, NotWanted, PlayOutcome, PolicyWanted, Recorded
from rollout_sampler.usecases.play_episode import PlayEpisode
from service_kit.errors import as_errors
from service_kit.idleness import SlotMeter
from service_kit.telemetry import mark_failed
from service_kit.waits import WaitLog
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)


def episode_router(
    spec: ConsumerSpec,
    play: PlayEpisode,
    bus: EventBus,
    *,
    now: Callable[[], datetime],
    slots: int,
    can_sample: Callable[[PolicyWanted], Awaitable[bool]],
) -> tuple[EventRouter, QueueSubscriber]:
    """Plays the episodes of one pool, at most `slots` at once, of the models that the queue follows. Safe to
    redeliver.

    can_sample: whether an engine can; an episode that none can sample waits without a slot.
    """
    router = EventRouter()
    (pool,) = spec.pools
    meter = SlotMeter(slots)
    telemetry.IDLE_RATIO.labels(pool).set_function(meter.idle_ratio)
    episodes = Episodes(pool, play, bus, now)

    needs = Needs(lambda event: wire.policy_from_wire(event.policy), can_sample)
    queue = router.queue(spec, slots=slots, needs=needs)

    @queue
    async def on_episode_requested(event: EpisodeRequested, delivery: CurrentDelivery) -> None:
        """Returns when the outcome is published. Raises Unavailable, PoisonMessage."""
        task = wire.task_from_wire(event)
        with meter.playing():
            await episodes.play_and_publish(task, event, delivery)

    return router, queue


class Episodes:
    """Plays one episode and publishes how it ended."""

    def __init__(self, pool: str, play: PlayEpisode, bus: EventBus, now: Callable[[], datetime]) -> None:
        self._pool = pool
        self._play = play
        self._bus = bus
        self._now = now
        self._waits = WaitLog(log, "episodes_wait")

    async def play_and_publish(
        self, task: EpisodeTask, requested: EpisodeRequested, delivery: Delivery[EpisodeRequested]
    ) -> None:
        """Returns when the outcome is published. Raises Unavailable."""
        with telemetry.IN_FLIGHT.labels(self._pool).track_inprogress(), telemetry.agent_span(task) as span:
            try:
                outcome = await self._outcome(task, delivery)
            except Unavailable as error:
                self._count("later")
                telemetry.WAITS.labels(self._pool).inc()
                self._waits.say(error.waiting_for)
                raise
            if isinstance(outcome, Failed):
                mark_failed(span, outcome.kind, outcome.detail)
            await self._publish(requested, outcome)

    async def _outcome(self, task: EpisodeTask, delivery: Delivery[EpisodeRequested]) -> PlayOutcome:
        try:
            with as_errors():
                return await self._play(task, may_be_stored=_came_before(delivery))
        except Unavailable:
            raise
        except Exception as error:
            # A bug is retried a few times; then the episode fails, so that its group does not wait for it.
            if not delivery.is_last_try:
                raise
            log.exception("episode_gave_up", extra={"episode_id": task.identity.episode_id})
            return Failed(EpisodeFailure.SAMPLER_ERROR, f"{type(error).__name__}: {error}")

    async def _publish(self, requested: EpisodeRequested, outcome: PlayOutcome) -> None:
        model, episode_id = requested.policy.model, requested.episode.episode_id
        match outcome:
            case Recorded(body, ref):
                self._count("recorded")
                recorded_id = events.trajectory_recorded(body.episode.trajectory_id)
                await self._bus.publish(wire.recorded_to_wire(body, ref), model=model, event_id=recorded_id)
            case Failed(kind, detail, usage):
                self._count("failed", kind)
                extra = {"episode_id": episode_id, "kind": kind, "detail": detail}
                log.warning("episode_failed", extra=extra)
                failed = episode_failed(
                    requested.episode,
                    kind,
                    detail,
                    reported_by="rollout_sampler",
                    at=self._now(),
                    usage=usage,
                )
                outcome_id = events.episode_outcome(episode_id)
                (stored,) = await self._bus.decide([Decision(failed, model, outcome_id)])
                if isinstance(stored, TrajectoryGraded):  # another sampler played it
                    log.warning("episode_was_graded", extra={"episode_id": episode_id})
            case NotWanted(why):
                self._count("not_wanted")
                log.info("episode_not_wanted", extra={"episode_id": episode_id, "why": why})
            case _:
                assert_never(outcome)

    def _count(self, outcome: str, kind: str = "") -> None:
        telemetry.EPISODES.labels(self._pool, outcome, EpisodeFailure.label(kind)).inc()


def _came_before(delivery: Delivery[EpisodeRequested]) -> bool:
    """A redelivery, or a command that the planner sent again: its trajectory may be stored already. An id
    that does not say how often the command was sent counts as one that was."""
    return delivery.num_delivered > 1 or events.parse_dispatch(delivery.event_id) != 1
