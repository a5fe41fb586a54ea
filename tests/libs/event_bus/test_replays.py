"""Reading from a cursor of one's own: endless, ordered, without gaps, across restarts of the server."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from nats.js import JetStreamContext
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import (
    FAST,
    MODEL,
    Seen,
    eyes_on,
    failed,
    running,
    subscribe_ephemeral,
    topology,
)
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusSettings, CursorBeyondStream, Delivery, EventBus, UnknownEvent, readers, replays
from event_bus.incoming import Decoder
from event_bus.provision import provision
from event_bus.topology import EVENTS
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, GroupShortened, RunFinished
from upcycle.errors import Unavailable


@pytest.fixture
def server(nats_server: NatsFactory) -> NatsServer:
    return nats_server()


async def publish(bus: EventBus, *details: str, model: str = MODEL) -> None:
    for detail in details:
        await bus.publish(failed(detail), model=model, event_id=f"{model}/{detail}")


async def take(
    bus: EventBus,
    count: int,
    *,
    after: int = 0,
    model: str | None = None,
    found: list[Delivery[Any]] | None = None,
) -> list[Delivery[Any]]:
    """The next facts; `found` gets each as it comes."""
    found = [] if found is None else found
    async with asyncio.timeout(60):
        async for delivery in bus.replay([EpisodeFailed, RunFinished], after_sequence=after, model=model):
            found.append(delivery)
            if len(found) == count:
                break
    return found


async def test_facts_gone_behind_the_cursor_are_reported_to_their_reader(server: NatsServer) -> None:
    await provision(server.url, topology=topology())
    bus = EventBus(BusSettings(url=server.url), client_name="reader", topology=topology(), timings=FAST)
    reported: list[tuple[int, int]] = []
    bus.on_facts_lost = lambda after, first: reported.append((after, first))
    await bus.start()
    try:
        await publish(bus, *"abcdef")
        async with eyes_on(server) as eyes:
            first = (await eyes.jetstream.stream_info(EVENTS)).state.first_seq
            await take(bus, 1, after=first)
            assert reported == []
            await eyes.jetstream.purge_stream(EVENTS, seq=first + 4)
        (delivery,) = await take(bus, 1, after=first)
        assert delivery.sequence == first + 4
        assert reported == [(first, first + 4)]
    finally:
        await bus.stop()


async def test_a_replay_resumes_after_its_cursor_and_goes_on_with_what_is_new(server: NatsServer) -> None:
    async with running(server) as bus:
        await publish(bus, "a", "b")
        await bus.publish(GroupShortened(group_id="g"), model=MODEL, event_id="other")
        first = await take(bus, 2)
        seen: list[Delivery[Any]] = []
        reading = asyncio.create_task(take(bus, 3, after=first[-1].sequence, found=seen))
        await publish(bus, "c")
        await until(lambda: len(seen) == 1)
        await bus.publish(RunFinished(run_id="r"), model="another", event_id="r")
        await publish(bus, "d")
        rest = await reading
    assert [one.message.detail for one in first] == ["a", "b"]
    assert [(type(one.message).__name__, one.sequence) for one in rest] == [
        ("EpisodeFailed", 4),
        ("RunFinished", 5),
        ("EpisodeFailed", 6),
    ]
    assert {one.num_delivered for one in rest} == {1}


async def test_a_replay_of_one_model_sees_only_its_facts(server: NatsServer) -> None:
    async with running(server) as bus:
        await publish(bus, "a", model="m.1")
        await publish(bus, "b", model="m.2")
        await publish(bus, "c", model="m.1")
        assert [one.message.detail for one in await take(bus, 2, model="m.1")] == ["a", "c"]


async def test_a_replay_survives_kill_9_of_the_server_without_a_gap_or_a_repeat(server: NatsServer) -> None:
    names = [f"{n:03}" for n in range(60)]
    async with running(server) as bus:
        reading = asyncio.create_task(take(bus, 60))
        await publish(bus, *names[:20])
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await publish(bus, *names[20:40])
        await asyncio.to_thread(server.restart)
        await publish(bus, *names[40:])
        found = await reading
    assert [one.message.detail for one in found] == names


async def test_a_kept_cursor_resumes_in_a_new_process_after_a_restart_of_the_server(
    server: NatsServer,
) -> None:
    async with running(server) as bus:
        await publish(bus, "a", "b", "c")
        cursor = (await take(bus, 2))[-1].sequence
    server.restart()
    async with running(server) as bus:
        assert [one.message.detail for one in await take(bus, 1, after=cursor)] == ["c"]


async def test_a_cursor_from_another_stream_is_refused(server: NatsServer) -> None:
    async with running(server) as bus:
        await publish(bus, "a")
        with pytest.raises(CursorBeyondStream, match="cursor 7 is beyond the newest fact 1"):
            await take(bus, 1, after=7)


async def test_poison_is_kept_as_a_dead_letter_and_the_replay_goes_on(server: NatsServer) -> None:
    async with running(server) as bus, eyes_on(server) as eyes:
        await publish(bus, "a")
        await eyes.jetstream.publish(f"up.default.evt.episode.failed.{MODEL}", b"{nonsense")
        await publish(bus, "b")
        assert [one.message.detail for one in await take(bus, 2)] == ["a", "b"]
        await take(bus, 2)
        (letter,) = await eyes.dead_letters()
        assert letter.headers["Upcycle-Consumer"] == "replay-test"


async def test_many_facts_arrive_fast_and_complete(server: NatsServer) -> None:
    async with running(server) as bus, eyes_on(server) as eyes:
        for _ in range(10):
            await asyncio.gather(
                *(eyes.jetstream.publish(f"up.default.evt.episode.failed.{MODEL}", b"{}") for _ in range(100))
            )
        assert [one.sequence for one in await take(bus, 1000)] == list(range(1, 1001))


async def test_a_replay_leaves_no_consumer_behind_for_long(server: NatsServer) -> None:
    async with running(server) as bus, eyes_on(server) as eyes:
        await publish(bus, "a")
        await take(bus, 1)
        (consumer,) = await eyes.jetstream.consumers_info(EVENTS)
        assert consumer.config is not None
        assert consumer.config.inactive_threshold == 60


async def test_a_replay_ends_when_the_bus_stops(server: NatsServer) -> None:
    async with running(server) as bus:
        await publish(bus, "a")
        seen: list[Delivery[Any]] = []
        reading = asyncio.create_task(take(bus, 5, found=seen))
        await until(lambda: len(seen) == 1)
    assert [one.message.detail for one in await reading] == ["a"]


async def test_an_error_in_place_of_a_cancellation_ends_a_replay_too(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading = asyncio.Event()

    async def closing(*_: object) -> AsyncIterator[Delivery[Any]]:
        is_reading.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            raise Unavailable("the connection closed meanwhile") from error
        for never in list[Delivery[Any]]():
            yield never

    monkeypatch.setattr("event_bus.replays.replay", closing)
    async with running(server) as bus:
        reading = asyncio.create_task(take(bus, 1))
        await is_reading.wait()
    assert await reading == []


async def test_a_replay_of_nothing_is_refused(server: NatsServer) -> None:
    async with running(server) as bus:
        with pytest.raises(UnknownEvent, match="at least one"):
            bus.replay([], after_sequence=0)


async def test_an_ephemeral_reader_sees_what_is_new_in_order_across_a_restart(server: NatsServer) -> None:
    seen, other = Seen(), Seen()

    def setup(bus: EventBus) -> None:
        subscribe_ephemeral(bus, [EpisodeFailed], seen, model=MODEL)
        subscribe_ephemeral(bus, [EpisodeFailed], other, start=1)

    async with running(server) as bus:
        await publish(bus, "old", "older")
    async with running(server, setup=setup) as bus:
        await publish(bus, "a")
        await asyncio.to_thread(server.restart)
        await publish(bus, "b", "c")
        await publish(bus, "elsewhere", model="another")
        await until(lambda: len(seen.deliveries) == 3 and len(other.deliveries) == 5)
    assert seen.details == ["a", "b", "c"]
    assert other.details == ["older", "a", "b", "c", "elsewhere"]


async def test_an_ephemeral_reader_tries_again_and_in_the_end_goes_on(server: NatsServer) -> None:
    seen = Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        if delivery.message.detail == "bad":
            raise ValueError("no")

    async with running(server, setup=lambda bus: subscribe_ephemeral(bus, [EpisodeFailed], handler)) as bus:
        await publish(bus, "bad", "good")
        await until(lambda: "good" in seen.details)
        assert bus.ready() is None
    assert seen.details == ["bad"] * 5 + ["good"]


async def test_a_cancellation_of_its_own_does_not_end_an_ephemeral_reader(server: NatsServer) -> None:
    seen = Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        if len(seen.deliveries) == 1:
            raise asyncio.CancelledError("by another task")

    async with running(server, setup=lambda bus: subscribe_ephemeral(bus, [EpisodeFailed], handler)) as bus:
        await publish(bus, "a", "b")
        await until(lambda: seen.details == ["a", "a", "b"])
        assert bus.ready() is None


async def test_what_the_stream_holds_now_is_read_to_its_end(server: NatsServer) -> None:
    async with running(server) as bus, eyes_on(server) as eyes:
        assert await bus.stored([EpisodeFailed], after_sequence=0) == []
        await publish(bus, *(f"{n}" for n in range(250)))
        await publish(bus, "theirs", model="another")
        await bus.publish(GroupShortened(group_id="g"), model=MODEL, event_id="other")
        found = await bus.stored([EpisodeFailed], after_sequence=20, model=MODEL)
        assert [int(one.message.detail) for one in found] == list(range(20, 250))
        assert [one.sequence for one in found] == list(range(21, 251))
        every = await bus.stored([EpisodeFailed, RunFinished], after_sequence=0)
        assert every[-1].message.detail == "theirs"
        assert await bus.stored([EpisodeFailed], after_sequence=9999) == []
        assert await eyes.jetstream.consumers_info(EVENTS) == []


async def test_what_the_stream_holds_is_waited_for_and_then_said_to_be_away(server: NatsServer) -> None:
    timings = replace(FAST, publish_budget_s=0.5)
    async with running(server, timings=timings) as bus:
        await asyncio.to_thread(server.kill)
        with pytest.raises(Unavailable, match=r"cannot read facts after 7 of stream EVENTS within 0\.5 s"):
            await bus.stored([EpisodeFailed], after_sequence=7)


async def test_a_reader_goes_on_when_the_stream_was_made_anew(
    server: NatsServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place, 3, is beyond a stream of 1 fact. One reader begins at the start again, one at the end. What
    is published after it said so is read, however slowly NATS tells where the end is.
    """
    every, newer = Seen(), Seen()
    newest = replays.last_sequence

    async def slowly(jetstream: JetStreamContext) -> int:
        await asyncio.sleep(0.5)
        return await newest(jetstream)

    monkeypatch.setattr(replays, "last_sequence", slowly)

    def setup(bus: EventBus) -> None:
        subscribe_ephemeral(bus, [EpisodeFailed], every, start=0)
        subscribe_ephemeral(bus, [EpisodeFailed], newer)

    async with running(server, setup=setup) as bus, eyes_on(server) as eyes:
        await publish(bus, "a", "b", "c")
        await until(lambda: every.details == newer.details == ["a", "b", "c"])
        await eyes.jetstream.delete_stream(EVENTS)
        await provision(server.url, topology=topology())
        await publish(bus, "d")
        await until(lambda: [record.message for record in caplog.records].count("reader_begins_anew") == 2)
        await publish(bus, "e")
        await until(lambda: every.details[3:] == ["d", "e"] and newer.details[-1] == "e")
        assert newer.details[3:] in (["e"], ["d", "e"])


async def test_a_replay_notices_a_stream_that_was_made_anew_after_it_looked(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumer, made to begin at 3, would pass over the facts 1 and 2 of the new stream."""
    create = readers.opened

    async def after_the_stream(*arguments: Any) -> Any:
        monkeypatch.setattr(readers, "opened", create)
        await eyes.jetstream.delete_stream(EVENTS)
        await provision(server.url, topology=topology())
        await publish(bus, "c", "d")
        return await create(*arguments)

    async with running(server) as bus, eyes_on(server) as eyes:
        await publish(bus, "a", "b")
        monkeypatch.setattr(readers, "opened", after_the_stream)
        with pytest.raises(CursorBeyondStream, match="was made anew"):
            await take(bus, 1, after=2)


async def test_a_reader_that_was_interrupted_goes_on_after_its_last_fact(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, broken = Seen(), asyncio.Event()
    deliver = Decoder.delivery

    def delivery(self: Decoder, raw: Any) -> Delivery[Any]:
        found = deliver(self, raw)
        if found.message.detail == "c" and not broken.is_set():
            broken.set()
            raise RuntimeError("a bug of the reader")
        return found

    monkeypatch.setattr(Decoder, "delivery", delivery)
    async with running(server, setup=lambda bus: subscribe_ephemeral(bus, [EpisodeFailed], seen)) as bus:
        await publish(bus, "a", "b", "c")
        await until(lambda: "c" in seen.details)
    assert seen.details == ["a", "b", "c"]
