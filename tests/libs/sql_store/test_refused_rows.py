"""Rows that the bus refuses: never dropped, named by `ready`, published once the cause is mended."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection
from tests.libs.sql_store.support import Remembering, opened
from tests.libs.sql_store.test_outbox import fact, put, unpublished
from tests.support.waiting import until

from event_bus import BusError, EventTooLarge
from service_kit.component import ALARM
from sql_store import OutboxRelay, enqueue_again
from sql_store.outbox import publish_again

Again = Callable[[Connection], Any]


async def test_a_refused_row_is_named_and_holds_up_no_other(sql_url: str) -> None:
    bus = Remembering()
    bus.refuses["b"], bus.refuses["d"] = EventTooLarge("too large"), BusError("no responders")
    async with opened(sql_url) as db:
        await put(db, "a", "b", "c", "d", "e")
        relay = OutboxRelay(db, bus)
        await relay.start()
        await until(lambda: bus.ids("fact") == ["a", "c", "e"] and relay.ready() is not None)
        await until(lambda: "refuses 2 stored messages" in (relay.ready() or ""))
        why = relay.ready() or ""
        assert why.startswith(ALARM)
        assert "the first is b (EventTooLarge" in why
        assert "too large" in why
        await relay.stop()
        assert await db.run(unpublished) == ["b", "d"]


async def test_a_refused_row_is_published_when_the_bus_takes_it(sql_url: str) -> None:
    bus = Remembering()
    bus.refuses["b"] = EventTooLarge("too large")
    async with opened(sql_url) as db:
        await put(db, "a", "b")
        relay = OutboxRelay(db, bus, try_refused_s=0.05)
        await relay.start()
        await until(lambda: "the first is b" in (relay.ready() or ""))
        bus.refuses.clear()
        await until(lambda: bus.ids("fact") == ["a", "b"])
        await until(lambda: relay.ready() is None)
        await relay.stop()
        assert await db.run(unpublished) == []


async def test_the_next_process_tries_what_was_refused_and_names_what_still_is(sql_url: str) -> None:
    bus = Remembering()
    bus.refuses["a"], bus.refuses["b"] = EventTooLarge("too large"), BusError("no such stream")
    async with opened(sql_url) as db:
        await put(db, "a", "b")
        first = OutboxRelay(db, bus)
        await first.start()
        await until(lambda: "2 stored messages" in (first.ready() or ""))
        await first.stop()
        del bus.refuses["a"]
        second = OutboxRelay(db, bus)
        await second.start()
        await until(lambda: bus.ids("fact") == ["a"])
        await until(lambda: "1 stored message, the first is b" in (second.ready() or ""))
        await second.stop()


@pytest.mark.parametrize(
    "again",
    [
        lambda connection: publish_again(connection, ["a"]),
        lambda connection: enqueue_again(connection, fact("a"), model="m", event_id="a"),
    ],
    ids=["publish_again", "enqueue_again"],
)
async def test_what_is_announced_again_is_tried_although_it_was_refused(sql_url: str, again: Again) -> None:
    bus = Remembering()
    bus.refuses["a"] = EventTooLarge("too large")
    async with opened(sql_url) as db:
        await put(db, "a")
        relay = OutboxRelay(db, bus)
        await relay.start()
        await until(lambda: "the first is a" in (relay.ready() or ""))
        bus.refuses.clear()
        await db.run(again)
        await until(lambda: "a" in bus.ids("fact"))  # twice, where the try at the start is that late
        await relay.stop()
        assert await db.run(unpublished) == []
