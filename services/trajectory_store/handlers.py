"""Bus edge: batches of facts in stream order, each folded into the ledger in one transaction."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from event_bus import Delivery, EventHandlers, EventRouter, PoisonMessage
from event_bus.topology import TRAJECTORY_STORE_LEDGER
from trajectory_store import telemetry
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.domain.facts import EpisodeFact
from trajectory_store.wire import facts
from upcycle.api.taskset.v1 import events_pb2 as taskset
from upcycle.api.training.v1.events_pb2 import GroupSettled, StepCompleted
from upcycle.api.trajectory.v1.events_pb2 import (
    RecordedSessionExpired,
    RecordedSessionOpened,
    TrajectoryGraded,
    TrajectoryRecorded,
)

FACTS: Final = EventHandlers[Iterator[EpisodeFact]]()
"""What each event says, episode by episode."""
FACTS(taskset.RunSubmitted)(facts.nothing)
FACTS(taskset.RunFinished)(facts.nothing)
FACTS(taskset.GroupShortened)(facts.nothing)
FACTS(taskset.EpisodeRequested)(facts.on_requested)
FACTS(taskset.EpisodeFailed)(facts.on_failed)
FACTS(taskset.EpisodeCancelled)(facts.on_cancelled)
FACTS(TrajectoryRecorded)(facts.on_recorded)
FACTS(TrajectoryGraded)(facts.on_graded)
FACTS(RecordedSessionOpened)(facts.on_session_opened)
FACTS(RecordedSessionExpired)(facts.on_session_expired)
FACTS(GroupSettled)(facts.on_group_settled)
FACTS(StepCompleted)(facts.on_step_completed)


def ledger_router(index: SqlIndex, *, on_change: Callable[[], None], batch_size: int) -> EventRouter:
    """Safe to redeliver: folding a fact twice equals folding it once."""
    router = EventRouter()

    @router.projection(TRAJECTORY_STORE_LEDGER, FACTS, batch_size=batch_size)
    async def fold(batch: Sequence[tuple[Delivery[Any], Iterator[EpisodeFact]]]) -> None:
        """Raises Unavailable for the database, PoisonMessage for a fact without an episode."""
        try:
            found = [fact for _, said in batch for fact in said]
        except facts.MalformedFact as error:
            raise PoisonMessage(str(error)) from error
        with telemetry.PROJECT_S.time():
            changed = await index.project(found)
        for delivery, _ in batch:
            telemetry.FACTS.labels(delivery.message.DESCRIPTOR.name).inc()
        if changed:
            on_change()

    return router
