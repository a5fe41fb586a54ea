"""The outbox where facts are many: stored by one statement, published together."""

from functools import partial

import pytest
from sqlalchemy import select
from tests.libs.sql_store.support import OUTBOX, Remembering, opened
from tests.libs.sql_store.test_outbox import fact, put
from tests.support.waiting import until

from identities.errors import InvalidIdentity
from sql_store import Fact, OutboxRelay, enqueue, enqueue_facts


async def test_a_relay_that_gathers_publishes_together_what_was_stored_after_the_first_row(
    sql_url: str,
) -> None:
    bus, names = Remembering(), [f"{n:03}" for n in range(40)]
    async with opened(sql_url) as db:
        relay = OutboxRelay(db, bus, poll_s=3600, gather_s=2.0)
        await relay.start()
        await put(db, "first")
        await until(lambda: len(bus.published) == 1)  # it looked once it began, and waits for a wake-up
        await put(db, *names[:20])
        await put(db, *names[20:])
        await until(lambda: len(bus.published) == 41)
        await relay.stop()
        assert bus.ids("fact") == ["first", *names]
        assert bus.batches == [40]


async def test_facts_are_stored_together_as_each_would_be(sql_url: str) -> None:
    facts = [Fact(fact(name, model=f"m{name}"), f"m{name}", name) for name in "abca"]
    async with opened(sql_url) as db:
        await db.run(lambda connection: enqueue_facts(connection, facts))
        for one in facts:
            await db.run(
                partial(enqueue, event=one.message, model=one.model, event_id=one.event_id + "-alone")
            )
        columns = (OUTBOX.c.stream, OUTBOX.c.subject, OUTBOX.c.schema, OUTBOX.c.payload, OUTBOX.c.trace)
        rows = await db.run(
            lambda connection: connection.execute(select(*columns).order_by(OUTBOX.c.id)).all()
        )
        assert rows[:3] == rows[3:]
        with pytest.raises(InvalidIdentity):
            await db.run(lambda connection: enqueue_facts(connection, [*facts, Fact(fact("d"), "", "d")]))
