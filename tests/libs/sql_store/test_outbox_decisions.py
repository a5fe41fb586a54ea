"""Decisions in the outbox: the stored decision is followed, and copied again where the facts lost it."""

import asyncio
from functools import partial

from sqlalchemy import Connection, select
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import eyes_on
from tests.libs.event_bus.test_decisions import forget_ids
from tests.libs.sql_store.support import OUTBOX, eventually, opened, opened_bus
from tests.libs.sql_store.test_outbox import BY_PLANNER, EXCLUDED, unpublished

from event_bus.topology import EVENTS
from sql_store import OutboxRelay, enqueue, enqueue_again, publish_again
from upcycle.api.training.v1.events_pb2 import GroupSettled


async def test_a_decision_that_finds_another_standing_is_done_with_and_holds_nothing_up(
    sql_url: str, nats_server: NatsFactory
) -> None:
    async with opened(sql_url) as db, opened_bus(nats_server()) as bus:
        relay = OutboxRelay(db, bus, poll_s=0.1)
        await bus.publish(GroupSettled(outcome="trained"), model="m", event_id="settled/g1", author="trainer")
        await relay.start()
        for name in ("g1", "g2"):
            await db.run(partial(enqueue, event=EXCLUDED, event_id=f"settled/{name}", **BY_PLANNER))
        await eventually(db, unpublished, list[str](), timeout_s=30)
        found = []
        async for delivery in bus.replay([GroupSettled], after_sequence=0):
            found.append((delivery.event_id, delivery.message.outcome))
            if len(found) == 2:
                break
        assert found == [("settled/g1", "trained"), ("settled/g2", "excluded")]
        assert await db.run(refusals) == []
        await relay.stop()


async def test_what_stands_is_copied_again_where_the_facts_lost_it(
    sql_url: str, nats_server: NatsFactory
) -> None:
    """g1 was settled by the trainer, g2 not at all, g3 by the planner, whose row the outbox still has."""
    server = nats_server()
    async with opened(sql_url) as db, opened_bus(server) as bus:

        async def copies(count: int) -> list[tuple[str, str]]:
            found: list[tuple[str, str]] = []
            async with asyncio.timeout(30):
                async for delivery in bus.replay([GroupSettled], after_sequence=0):
                    found.append((delivery.event_id, delivery.message.outcome))
                    if len(found) == count:
                        return found
            return found

        relay = OutboxRelay(db, bus, poll_s=0.1)
        await relay.start()
        await bus.publish(GroupSettled(outcome="trained"), model="m", event_id="settled/g1", author="trainer")
        await db.run(partial(enqueue, event=EXCLUDED, event_id="settled/g3", **BY_PLANNER))
        await copies(2)
        await eventually(db, unpublished, list[str](), timeout_s=30)
        async with eyes_on(server) as eyes:
            await eyes.jetstream.purge_stream(EVENTS)
        await forget_ids(server)
        for name in ("settled/g1", "settled/g2"):
            await db.run(partial(enqueue_again, event=EXCLUDED, event_id=name, **BY_PLANNER))
        await db.run(lambda sql: publish_again(sql, ["settled/g3", "settled/g4"]))
        await eventually(db, unpublished, list[str](), timeout_s=30)
        found = await copies(3)
        assert dict(found) == {"settled/g1": "trained", "settled/g2": "excluded", "settled/g3": "excluded"}
        await relay.stop()


def refusals(connection: Connection) -> list[str]:
    found = select(OUTBOX.c.refusal).where(OUTBOX.c.refusal.is_not(None))
    return list(connection.execute(found).scalars())
