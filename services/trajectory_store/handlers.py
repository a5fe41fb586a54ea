"""Bus edge: batches of facts in stream order, each folded into the ledger in one transaction."""

from collections.abc import Callable, Sequence
from typing import Final

from google.protobuf.message import Message
from prometheus_client import Counter, Histogram

from event_bus import Delivery, PoisonMessage
from trajectory_store import wire
from trajectory_store.domain import Fact
from trajectory_store.ports import Index, Unavailable
from upcycle import errors

FACTS: Final = Counter("upcycle_ledger_facts_total", "Facts folded into the ledger", ["event"])
PROJECT_S: Final = Histogram("upcycle_ledger_batch_seconds", "Folding one batch of facts")


class LedgerHandler:
    """Safe to redeliver: folding a fact twice equals folding it once."""

    def __init__(self, index: Index, *, on_change: Callable[[], None]) -> None:
        self._index = index
        self._on_change = on_change

    async def __call__(self, batch: Sequence[Delivery[Message]]) -> None:
        """Raises Unavailable while the database is, PoisonMessage for a fact without an episode."""
        facts: list[Fact] = []
        for delivery in batch:
            traceparent = delivery.headers.get("traceparent", "")
            try:
                facts += wire.facts_of(delivery.message, delivery.published_at, traceparent)
            except wire.MalformedFact as error:
                raise PoisonMessage(str(error)) from error
        try:
            with PROJECT_S.time():
                changed = await self._index.project(facts)
        except Unavailable as error:
            raise errors.Unavailable(error.waiting_for, error.delay_s) from error
        for delivery in batch:
            FACTS.labels(delivery.message.DESCRIPTOR.name).inc()
        if changed:
            self._on_change()
