"""Bus edge: batches of facts in stream order, each folded into the ledger in one transaction."""

from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from event_bus import Delivery, PoisonMessage
from trajectory_store import telemetry
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.domain.facts import EpisodeFact
from trajectory_store.wire.facts import MalformedFact, facts_of


class LedgerHandler:
    """Safe to redeliver: folding a fact twice equals folding it once."""

    def __init__(self, index: SqlIndex, *, on_change: Callable[[], None]) -> None:
        self._index = index
        self._on_change = on_change

    async def __call__(self, batch: Sequence[Delivery[Message]]) -> None:
        """Raises Unavailable while the database is away, PoisonMessage for a fact without an episode."""
        facts: list[EpisodeFact] = []
        for delivery in batch:
            traceparent = delivery.headers.get("traceparent", "")
            try:
                facts += facts_of(delivery.message, delivery.published_at, traceparent)
            except MalformedFact as error:
                raise PoisonMessage(str(error)) from error
        with telemetry.PROJECT_S.time():
            changed = await self._index.project(facts)
        for delivery in batch:
            telemetry.FACTS.labels(delivery.message.DESCRIPTOR.name).inc()
        if changed:
            self._on_change()
