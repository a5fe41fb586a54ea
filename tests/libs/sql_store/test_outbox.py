"""The outbox: with the transaction or not at all, published in order, at least once, and never in the way."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from sqlalchemy import Connection, func, select, update
from tests.conftest import NatsFactory
from tests.libs.sql_store.support import OUTBOX, Remembering, eventually, opened, opened_bus, texts, write
from tests.support.waiting import until

from event_bus import Encoded, EventTooLarge, PubAck, QueueFull, UnknownEvent
from identities.errors import InvalidIdentity
from sql_store import Database, OutboxRelay, enqueue, enqueue_command
from sql_store.relay import prune
from upcycle.api.common.v1.common_pb2 import BlobRef, EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeCancelled, EpisodeRequested
from upcycle.api.training.v1.events_pb2 import GroupSettled
from upcycle.errors import Unavailable

EXCLUDED = GroupSettled(outcome="excluded")
BY_PLANNER: dict[str, Any] = {"model": "m", "author": "planner"}


def fact(event_id: str, *, model: str = "m") -> EpisodeCancelled:
    return EpisodeCancelled(episode=EpisodeIdentity(episode_id=event_id, model=model))


async def put(db: Database, *event_ids: str) -> None:
    def all_of_them(connection: Connection) -> None:
        for event_id in event_ids:
            enqueue(connection, fact(event_id), model="m", event_id=event_id)

    await db.run(all_of_them)


async def put_command(db: Database, event_id: str) -> None:
    command = EpisodeRequested()
    await db.run(lambda sql: enqueue_command(sql, command, pool="train", model="m", event_id=event_id))


def unpublished(connection: Connection) -> list[str]:
    wanted = select(OUTBOX.c.event_id).where(OUTBOX.c.published_at.is_(None)).order_by(OUTBOX.c.id)
    return list(connection.execute(wanted).scalars())


async def test_an_event_is_stored_with_its_transaction_or_not_at_all(sql_url: str) -> None:
    def half(connection: Connection) -> None:
        write("row")(connection)
        enqueue(connection, fact("a"), model="m", event_id="a")
        raise LookupError

    async with opened(sql_url) as db:
        with pytest.raises(LookupError):
            await db.run(half)
        assert await db.run(unpublished) == await db.run(texts) == []


async def test_a_known_id_adds_nothing(sql_url: str) -> None:
    async with opened(sql_url) as db:
        await put(db, "a", "b")
        await put(db, "a")
        assert await db.run(unpublished) == ["a", "b"]


async def test_what_the_bus_would_refuse_is_refused_while_the_transaction_can_be(sql_url: str) -> None:
    async with opened(sql_url) as db:

        def too_large(connection: Connection) -> None:
            write("row")(connection)
            enqueue(connection, EpisodeCancelled(reason="x" * 300_000), model="m", event_id="a")

        with pytest.raises(EventTooLarge):
            await db.run(too_large)
        with pytest.raises(UnknownEvent):
            await db.run(lambda connection: enqueue(connection, BlobRef(), model="m", event_id="a"))
        with pytest.raises(InvalidIdentity):
            await db.run(lambda connection: enqueue(connection, fact("a"), model="", event_id="a"))
        assert await db.run(texts) == []


async def test_rows_are_published_in_order_and_marked(sql_url: str) -> None:
    bus, names = Remembering(), [f"{n:03}" for n in range(250)]
    async with opened(sql_url) as db:
        await put(db, *names)
        relay = OutboxRelay(db, bus)
        await relay.start()
        assert relay.ready() is None
        await until(lambda: len(bus.published) == 250)
        await relay.stop()
        assert relay.ready() is not None
        assert bus.ids("fact") == names
        assert bus.batches == [100, 100, 50]
        assert await db.run(unpublished) == []


async def test_the_relay_publishes_what_this_process_stores_without_a_poll(sql_url: str) -> None:
    bus = Remembering()
    async with opened(sql_url) as db:
        relay = OutboxRelay(db, bus, poll_s=3600)
        await relay.start()
        for n in range(3):
            await put(db, f"a{n}")
            await until(lambda n=n: len(bus.published) == n + 1)  # type: ignore[misc]
        await relay.stop()


async def test_polling_finds_what_another_process_stored(sql_url: str) -> None:
    bus = Remembering()
    async with opened(sql_url) as db, opened(sql_url) as other:
        relay = OutboxRelay(db, bus, poll_s=0.05)
        await relay.start()
        await put(other, "a")
        await until(lambda: bus.ids("fact") == ["a"])
        await relay.stop()


async def test_an_outage_holds_everything_in_order(sql_url: str) -> None:
    bus = Remembering()
    bus.down = True
    async with opened(sql_url) as db:
        relay = OutboxRelay(db, bus, poll_s=0.02)
        await relay.start()
        await put(db, "a", "b")
        await until(lambda: bus.num_refused > 1)
        assert relay.ready() is None
        await put(db, "c")
        bus.down = False
        await until(lambda: len(bus.published) == 3)
        await relay.stop()
    assert bus.ids("fact") == ["a", "b", "c"]


async def test_a_full_command_queue_does_not_hold_up_facts(sql_url: str) -> None:
    bus = Remembering()
    bus.refuses["task"] = QueueFull("full")
    async with opened(sql_url) as db:
        relay = OutboxRelay(db, bus, poll_s=0.02)
        await relay.start()
        await db.run(
            lambda connection: enqueue_command(
                connection,
                EpisodeRequested(episode=EpisodeIdentity(episode_id="e")),
                pool="train",
                model="m",
                event_id="task",
            )
        )
        await put(db, "a")
        await eventually(db, unpublished, ["task"])
        assert bus.ids("fact") == ["a"]
        del bus.refuses["task"]
        await until(lambda: bus.published[-1] == ("command", "up.default.task.episode.train.m", "task"))
        await relay.stop()


async def test_the_full_queue_of_one_model_does_not_hold_up_the_commands_of_another(sql_url: str) -> None:
    """More rows of the full queue than a batch has lie before the other's one."""
    bus = Remembering()
    ids = [f"full-{number:03}" for number in range(130)]
    bus.refuses = {event_id: QueueFull("full") for event_id in ids}

    def commands(connection: Connection) -> None:
        for event_id in (*ids, "other"):
            command = EpisodeRequested(episode=EpisodeIdentity(episode_id=event_id))
            model = event_id.partition("-")[0]
            enqueue_command(connection, command, pool="train", model=model, event_id=event_id)

    async with opened(sql_url) as db:
        relay = OutboxRelay(db, bus, poll_s=0.02)
        await relay.start()
        await db.run(commands)
        await eventually(db, unpublished, ids)
        assert bus.ids("command") == ["other"]
        bus.refuses.clear()
        await eventually(db, unpublished, list[str]())
        assert bus.ids("command") == ["other", *ids], "in order within one queue"
        await relay.stop()


async def test_no_command_overtakes_a_fact_that_it_rests_on(sql_url: str) -> None:
    """While "a" is refused, "task" waits; the command before it, and other facts, do not."""
    bus = Remembering()
    bus.refuses["a"] = Unavailable("the stream elects a leader")
    async with opened(sql_url) as db:
        await put_command(db, "earlier task")
        await put(db, "a")
        await put_command(db, "task")
        relay = OutboxRelay(db, bus, poll_s=0.02, never_overtaken=(EpisodeCancelled,))
        await relay.start()
        await eventually(db, unpublished, ["a", "task"])
        del bus.refuses["a"]
        await eventually(db, unpublished, list[str]())
        await relay.stop()
    assert [event_id for _, _, event_id in bus.published] == ["earlier task", "a", "task"]


async def test_no_decision_overtakes_a_fact_that_it_rests_on(sql_url: str) -> None:
    """It is copied to the facts, and would stand before the fact from which its readers begin."""
    bus = Remembering()
    bus.refuses["a"] = Unavailable("the stream elects a leader")
    async with opened(sql_url) as db:
        await db.run(partial(enqueue, event=EXCLUDED, event_id="settled/before", **BY_PLANNER))
        await put(db, "a")
        await db.run(partial(enqueue, event=EXCLUDED, event_id="settled/after", **BY_PLANNER))
        relay = OutboxRelay(db, bus, poll_s=0.02, never_overtaken=(EpisodeCancelled,))
        await relay.start()
        await eventually(db, unpublished, ["a", "settled/after"])
        del bus.refuses["a"]
        await eventually(db, unpublished, list[str]())
        await relay.stop()
    assert [event_id for _, _, event_id in bus.published] == ["settled/before", "a", "settled/after"]


async def test_commands_do_not_wait_for_the_next_poll_once_the_fact_is_out(sql_url: str) -> None:
    bus = Remembering()
    async with opened(sql_url) as db:
        await put(db, "a")
        await put_command(db, "task")
        relay = OutboxRelay(db, bus, poll_s=3600, never_overtaken=(EpisodeCancelled,))
        await relay.start()
        await until(lambda: len(bus.published) == 2)
        await relay.stop()


async def test_what_the_bus_will_never_take_is_set_aside_with_its_reason(sql_url: str) -> None:
    bus = Remembering()
    bus.refuses["b"] = EventTooLarge("too large")
    async with opened(sql_url) as db:
        await put(db, "a", "b", "c", "d")
        await db.run(
            lambda connection: connection.execute(
                update(OUTBOX).where(OUTBOX.c.event_id == "c").values(schema="upcycle.api.gone.v1.Fact")
            )
        )
        relay = OutboxRelay(db, bus)
        await relay.start()
        await until(lambda: len(bus.published) == 2)
        refused = select(OUTBOX.c.event_id, OUTBOX.c.refusal).where(OUTBOX.c.refusal.is_not(None))

        async def set_aside() -> list[tuple[str, str]]:
            found = await db.run(lambda connection: connection.execute(refused).all())
            return [(event_id, refusal) for event_id, refusal in found]

        while len(await set_aside()) < 2:  # the test's own time limit ends it
            await asyncio.sleep(0.05)
        await relay.stop()
        rows = sorted(await set_aside())
        assert [row[0] for row in rows] == ["b", "c"]
        assert "too large" in rows[0][1]
        assert "upcycle.api.gone.v1.Fact" in rows[1][1]
        await db.run(lambda connection: prune(connection, timedelta(seconds=-60)))
        assert (
            await db.run(lambda connection: connection.execute(select(func.count(OUTBOX.c.id))).scalar()) == 2
        )
    assert bus.ids("fact") == ["a", "d"]


async def test_one_refused_row_of_a_batch_takes_no_other_with_it(sql_url: str) -> None:
    bus, names = Remembering(), [f"{n:02}" for n in range(40)]
    bus.refuses["07"] = EventTooLarge("too large")
    async with opened(sql_url) as db:
        await put(db, *names)
        relay = OutboxRelay(db, bus)
        await relay.start()
        await eventually(db, unpublished, ["07"])
        await relay.stop()
    assert bus.ids("fact") == [name for name in names if name != "07"]


async def test_a_stop_publishes_what_is_committed(sql_url: str) -> None:
    bus = Remembering()
    async with opened(sql_url) as db:
        relay = OutboxRelay(db, bus, poll_s=30)
        await relay.start()
        await asyncio.sleep(0.05)
        await put(db, "last words")
        await relay.stop()
    assert bus.ids("fact") == ["last words"]


async def test_a_crash_between_publish_and_mark_publishes_again_under_the_same_id(sql_url: str) -> None:
    class Crashing(Remembering):
        async def publish_encoded(
            self, message: Encoded, stream: str, subject: str, *, event_id: str, again: bool = False
        ) -> PubAck:
            await super().publish_encoded(message, stream, subject, event_id=event_id, again=again)
            raise asyncio.CancelledError

    crashing, bus = Crashing(), Remembering()
    async with opened(sql_url) as db:
        await put(db, "a", "b")
        relay = OutboxRelay(db, crashing)
        await relay.start()
        await until(lambda: relay.ready() is not None)
        await relay.stop()
        again = OutboxRelay(db, bus)
        await again.start()
        await until(lambda: len(bus.published) == 2)
        await again.stop()
    assert crashing.ids("fact") == ["a"]
    assert bus.ids("fact") == ["a", "b"]


async def test_a_published_event_belongs_to_the_trace_that_stored_it(sql_url: str) -> None:
    seen: list[int] = []

    class Looking(Remembering):
        async def publish_encoded(
            self, message: Encoded, stream: str, subject: str, *, event_id: str, again: bool = False
        ) -> PubAck:
            seen.append(trace.get_current_span().get_span_context().trace_id)
            return await super().publish_encoded(message, stream, subject, event_id=event_id, again=again)

    provider = TracerProvider()
    async with opened(sql_url) as db:
        relay = OutboxRelay(db, Looking())
        await relay.start()
        with provider.get_tracer("t").start_as_current_span("request") as span:
            await put(db, "a")
        await put(db, "b")
        await until(lambda: len(seen) == 2)
        await relay.stop()
    assert seen == [span.get_span_context().trace_id, 0]


async def test_through_a_real_bus_and_its_kill_9(sql_url: str, nats_server: NatsFactory) -> None:
    server = nats_server()
    async with opened(sql_url) as db, opened_bus(server) as bus:
        relay = OutboxRelay(db, bus, poll_s=0.1)
        await relay.start()
        await put(db, *(f"a{n}" for n in range(20)))
        await asyncio.to_thread(server.kill)
        await put(db, *(f"b{n}" for n in range(20)))
        await asyncio.to_thread(server.start)
        await put(db, *(f"c{n}" for n in range(20)))
        found: list[str] = []
        async for delivery in bus.replay([EpisodeCancelled], after_sequence=0):
            found.append(delivery.event_id)
            if len(found) == 60:
                break
        assert found == [f"{run}{n}" for run in "abc" for n in range(20)]
        await relay.stop()


async def test_a_batch_of_which_the_bus_knows_rows_adds_the_others_in_order(
    sql_url: str, nats_server: NatsFactory
) -> None:
    """As after a crash between the server's answer and the mark."""
    names = [f"{n:02}" for n in range(60)]
    async with opened(sql_url) as db, opened_bus(nats_server()) as bus:
        relay = OutboxRelay(db, bus, poll_s=0.1)
        await put(db, *names[:40])
        await relay.start()
        await eventually(db, unpublished, list[str]())

        def forget(connection: Connection) -> None:
            connection.execute(update(OUTBOX).values(published_at=None))
            for name in names[40:]:
                enqueue(connection, fact(name), model="m", event_id=name)

        await db.run(forget)
        await eventually(db, unpublished, list[str]())
        await relay.stop()
        found = await bus.stored([EpisodeCancelled], after_sequence=0)
        assert [delivery.event_id for delivery in found] == names


async def test_old_rows_are_deleted_in_pieces(sql_url: str) -> None:
    marked = update(OUTBOX).where(OUTBOX.c.event_id != "e").values(published_at=func.now())
    in_a_minute = timedelta(seconds=-60)
    async with opened(sql_url) as db:
        await put(db, "a", "b", "c", "d", "e")
        await db.run(lambda connection: connection.execute(marked))
        pieces = [await db.run(lambda connection: prune(connection, in_a_minute, limit=3)) for _ in range(3)]
        assert pieces == [3, 1, 0]
        assert await db.run(unpublished) == ["e"]
