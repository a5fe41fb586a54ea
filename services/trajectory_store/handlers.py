"""Bus edge: batches of facts in stream order, each folded into the ledger in one transaction."""

from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from event_bus import Delivery, EventRouter, PoisonMessage
from event_bus.topology import TRAJECTORY_STORE_LEDGER
from trajectory_store import telemetry
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.domain.facts import EpisodeFact
from trajectory_store.wire.facts import MalformedFact, facts_of


def ledger_router(index: SqlIndex, *, on_change: Callable[[], None], batch_size: int) -> EventRouter:
    """Safe to redeliver: folding a fact twice equals folding it once."""
    router = EventRouter()

    @router.projection(TRAJECTORY_STORE_LEDGER, batch_size=batch_size)
    async def fold(batch: Sequence[Delivery[Message]]) -> None:
        """Raises Unavailable while the database is away, PoisonMessage for a fact without an episode."""
        facts: list[EpisodeFact] = []
        for delivery in batch:
            traceparent = delivery.headers.get("traceparent", "")
            try:
                facts += facts_of(delivery.message, delivery.published_at, traceparent)
            except MalformedFact as error:
                raise PoisonMessage(str(error)) from error
        with telemetry.PROJECT_S.time():
            changed = await index.project(facts)
        for delivery in batch:
            telemetry.FACTS.labels(delivery.message.DESCRIPTOR.name).inc()
        if changed:
            on_change()

    return router
