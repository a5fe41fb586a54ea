"""Bus edge: batches of facts in stream order, each folded into the ledger in one transaction."""

from collections.abc import Callable, Sequence
from typing import Final

from google.protobuf.message import Message
from prometheus_client import Counter, Histogram

from event_bus import Delivery, Later, Poison
from trajectory_store import wire
from trajectory_store.domain import Fact
from trajectory_store.ports import Index, Unavailable

FACTS: Final = Counter("upcycle_ledger_facts_total", "Facts folded into the ledger", ["event"])
PROJECT_S: Final = Histogram("upcycle_ledger_batch_seconds", "Folding one batch of facts")


class LedgerHandler:
    """Safe to redeliver: folding a fact twice equals folding it once."""

    def __init__(self, index: Index, *, on_change: Callable[[], None]) -> None:
        self._index = index
        self._on_change = on_change

    async def __call__(self, batch: Sequence[Delivery[Message]]) -> None:
        """Raises Later while the database is away or full, Poison for a fact that names no episode."""
        facts: list[Fact] = []
        for delivery in batch:
            traceparent = delivery.headers.get("traceparent", "")
            try:
                facts += wire.facts_of(delivery.message, delivery.published_at, traceparent)
            except wire.MalformedFact as error:
                raise Poison(str(error)) from error
        try:
            with PROJECT_S.time():
                changed = await self._index.project(facts)
        except Unavailable as error:
            raise Later(error.delay_s, error.waiting_for) from error
        for delivery in batch:
            FACTS.labels(delivery.message.DESCRIPTOR.name).inc()
        if changed:
            self._on_change()
