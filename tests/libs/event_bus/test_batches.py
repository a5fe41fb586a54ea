"""Batches for projections: stream order, whole or not at all, poison taken out alone."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from nats.aio.msg import Msg
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import (
    FAST,
    MODEL,
    eyes_on,
    fact_spec,
    failed,
    running,
    subscribe_batch,
    topology,
)
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusSettings, ConsumerSpec, Delivery, EventBus, PoisonMessage, batches
from event_bus.incoming import nack
from event_bus.pulls import fetched
from upcycle.errors import Unavailable

WHOLE = replace(FAST, pull_s=30.0)
"""A fetch waits for all that there is, also from a server that pauses in the middle."""
SUBJECT = f"up.default.evt.episode.failed.{MODEL}"


@pytest.fixture
def server(nats_server: NatsFactory) -> NatsServer:
    return nats_server()


def projection(**changes: Any) -> ConsumerSpec:
    return fact_spec("projection", **{"max_deliver": -1, "max_ack_pending": 50, **changes})


class Batches:
    """Collects batches; `trouble` may raise for one."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.done: list[str] = []

    def trouble(self, details: list[str]) -> None:
        """Nothing, unless a test says otherwise."""

    async def __call__(self, deliveries: Sequence[Delivery[Any]]) -> None:
        details = [str(one.message.detail) for one in deliveries]
        self.seen.append(details)
        self.trouble(details)
        self.done += details


async def publish(bus: EventBus, details: Sequence[str]) -> None:
    for detail in details:
        await bus.publish(failed(detail), model=MODEL, event_id=detail)


async def test_everything_comes_in_stream_order_in_bounded_batches(server: NatsServer) -> None:
    spec, got = projection(), Batches()
    names = [f"{n:03}" for n in range(90)]
    async with running(server) as bus:
        await publish(bus, names)
    async with (
        running(server, spec, setup=lambda bus: subscribe_batch(bus, spec, got, batch_size=20)),
        eyes_on(server) as eyes,
    ):
        await until(lambda: len(got.done) == 90)
        await eyes.settled(spec)
    assert got.done == names
    assert max(map(len, got.seen)) <= 20
    assert len(got.seen) < 45  # at best 5; 90 where each comes alone


async def test_a_lone_message_after_silence_arrives_at_once(server: NatsServer) -> None:
    """A fetch of many returns with one: no wait for the rest, no loss to a pull that timed out."""
    spec, got = projection(), Batches()
    timings = replace(FAST, pull_s=60.0)  # a fetch that waits for the rest would wait longer than the test
    async with running(
        server, spec, setup=lambda bus: subscribe_batch(bus, spec, got), timings=timings
    ) as bus:
        for n in range(3):
            await publish(bus, [str(n)])
            await until(lambda n=n: len(got.done) == n + 1)  # type: ignore[misc]


async def test_messages_gather_after_a_small_batch(server: NatsServer) -> None:
    """So ten that come one after the other are two or three batches, not ten transactions."""
    spec, got = projection(), Batches()
    timings = replace(FAST, gather_s=3.0)
    async with running(
        server, spec, setup=lambda bus: subscribe_batch(bus, spec, got), timings=timings
    ) as bus:
        for n in range(11):
            await publish(bus, [f"{n:02}"])
            if n == 0:
                await until(lambda: got.done == ["00"])
        await until(lambda: len(got.done) == 11)
    assert len(got.seen) <= 3


async def test_a_failed_batch_comes_again_whole_before_anything_newer(server: NatsServer) -> None:
    spec, got = projection(), Batches()
    failures = 0

    def trouble(details: list[str]) -> None:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise ValueError("database is locked")

    got.trouble = trouble  # type: ignore[method-assign]
    async with (
        running(server, spec, setup=lambda bus: subscribe_batch(bus, spec, got, batch_size=5)) as bus,
        eyes_on(server) as eyes,
    ):
        for n in range(12):
            await publish(bus, [f"{n:02}"])
            await asyncio.sleep(0.02)
        await until(lambda: len(got.done) == 12)
        await eyes.settled(spec)
        assert await eyes.dead_letters() == []
    assert got.done == [f"{n:02}" for n in range(12)]


async def test_a_cancellation_of_its_own_does_not_end_a_projection(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that the handler raises nor one that the reading itself raises."""
    spec, got, reads = projection(), Batches(), 0

    def trouble(details: list[str]) -> None:
        if len(got.seen) == 1:
            raise asyncio.CancelledError("by another task")

    async def cancelled_once(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise asyncio.CancelledError("by the client")
        return await fetched(*args)

    got.trouble = trouble  # type: ignore[method-assign]
    monkeypatch.setattr("event_bus.batches.fetched", cancelled_once)
    async with running(server, spec, setup=lambda bus: subscribe_batch(bus, spec, got)) as bus:
        await publish(bus, ["a"])
        await until(lambda: got.done == ["a"])
        assert bus.ready() is None
    assert got.seen == [["a"], ["a"]]


async def test_unavailable_nacks_the_batch_without_counting(server: NatsServer) -> None:
    spec, got = projection(), Batches()

    def trouble(details: list[str]) -> None:
        if len(got.seen) < 3:
            raise Unavailable("not yet", 0.05)

    got.trouble = trouble  # type: ignore[method-assign]
    async with running(server, spec, setup=lambda bus: subscribe_batch(bus, spec, got)) as bus:
        await publish(bus, ["a", "b"])
        await until(lambda: got.done == ["a", "b"])


async def test_what_cannot_be_decoded_leaves_the_batch_alone(server: NatsServer) -> None:
    spec, got = projection(), Batches()
    async with running(server) as bus, eyes_on(server) as eyes:
        await publish(bus, ["a"])
        await eyes.jetstream.publish(SUBJECT, b"{nonsense")
        await publish(bus, ["b"])
    async with (
        running(server, spec, setup=lambda bus: subscribe_batch(bus, spec, got), timings=WHOLE),
        eyes_on(server) as eyes,
    ):
        await until(lambda: len(got.done) == 2)
        await eyes.settled(spec)
        (letter,) = await eyes.dead_letters()
    assert got.seen == [["a", "b"]]
    assert letter.data == b"{nonsense"
    assert letter.headers["Upcycle-Consumer"] == "projection"


async def test_poison_in_a_batch_becomes_a_dead_letter_and_the_rest_passes_in_order(
    server: NatsServer,
) -> None:
    spec, got = projection(), Batches()

    def trouble(details: list[str]) -> None:
        if "c" in details:
            raise PoisonMessage("c is impossible")

    got.trouble = trouble  # type: ignore[method-assign]
    async with running(server) as bus:
        await publish(bus, list("abcde"))
    async with (
        running(server, spec, setup=lambda bus: subscribe_batch(bus, spec, got)),
        eyes_on(server) as eyes,
    ):
        await until(lambda: len(got.done) == 4)
        await eyes.settled(spec)
        (letter,) = await eyes.dead_letters()
    assert got.done == list("abde")
    assert letter.headers["Upcycle-Reason"] == "c is impossible"


async def test_heartbeats_cover_a_whole_batch(server: NatsServer) -> None:
    spec, got = projection(ack_wait_s=5.0), Batches()

    async def slow(deliveries: Sequence[Delivery[Any]]) -> None:
        await asyncio.sleep(1.5 * spec.ack_wait_s)
        await got(deliveries)

    async with running(server) as bus:
        await publish(bus, list("abc"))
    async with (
        running(server, spec, setup=lambda bus: subscribe_batch(bus, spec, slow), timings=WHOLE),
        eyes_on(server) as eyes,
    ):
        await until(lambda: len(got.done) == 3)
        await eyes.settled(spec)
    assert got.seen == [["a", "b", "c"]]


async def test_order_holds_across_a_reader_that_died_over_its_batch(server: NatsServer) -> None:
    """The next reader must not see newer messages before those that the dead one had."""
    spec, got = projection(ack_wait_s=1.0), Batches()
    async with running(server, spec) as bus, eyes_on(server) as eyes:
        await publish(bus, ["a", "b", "c"])
        dead = await eyes.jetstream.pull_subscribe_bind(spec.durable, stream=spec.stream)
        assert len(await dead.fetch(2)) == 2
    reader = EventBus(BusSettings(url=server.url), client_name="t", topology=topology(spec), timings=FAST)
    subscribe_batch(reader, spec, got)
    await reader.start()
    await until(lambda: len(set(got.done)) == 3)
    await reader.stop()
    assert list(dict.fromkeys(got.done)) == ["a", "b", "c"]  # a late answer is no answer: some come twice


async def test_a_stop_finishes_the_batch_in_hand(server: NatsServer) -> None:
    spec, got = projection(), Batches()
    started, release = asyncio.Event(), asyncio.Event()

    async def slow(deliveries: Sequence[Delivery[Any]]) -> None:
        started.set()
        await release.wait()
        await got(deliveries)

    async with running(server, spec, setup=lambda bus: subscribe_batch(bus, spec, slow)) as bus:
        await publish(bus, ["a"])
        await started.wait()
        stopping = asyncio.create_task(bus.stop())
        await until(lambda: bus.ready() == "stopping")
        release.set()
        await stopping
    assert got.done == ["a"]
    async with eyes_on(server) as eyes:
        await eyes.settled(spec)


async def test_a_stop_nacks_a_batch_that_would_not_end(server: NatsServer) -> None:
    spec = projection(ack_wait_s=120)
    started = asyncio.Event()

    async def endless(_: Sequence[Delivery[Any]]) -> None:
        started.set()
        await asyncio.sleep(60)

    timings = replace(FAST, drain_s=0.3)
    async with running(
        server, spec, setup=lambda bus: subscribe_batch(bus, spec, endless), timings=timings
    ) as bus:
        await publish(bus, ["a"])
        await started.wait()
    async with eyes_on(server) as eyes:
        sub = await eyes.jetstream.pull_subscribe_bind(spec.durable, stream=spec.stream)
        (raw,) = await sub.fetch(1, timeout=30)
        assert raw.metadata.num_delivered == 2


async def test_a_bus_whose_projection_fails_each_time_is_not_ready_and_names_it(server: NatsServer) -> None:
    spec, got, is_mended = projection(), Batches(), asyncio.Event()
    timings = replace(FAST, first_retry_s=0.01, max_retry_s=0.01)
    buses: list[EventBus] = []
    ready: list[str | None] = []

    def setup(bus: EventBus) -> None:
        buses.append(bus)
        subscribe_batch(bus, spec, got)

    def trouble(details: list[str]) -> None:
        ready.append(buses[0].ready())
        if not is_mended.is_set():
            raise ZeroDivisionError("a bug")

    got.trouble = trouble  # type: ignore[method-assign]
    async with running(server, spec, setup=setup, timings=timings) as bus:
        await publish(bus, ["a"])
        await until(lambda: len(ready) > 5)
        assert ready[:5] == [None] * 5
        assert "projections that cannot go on: projection failed 5 times in a row since 20" in str(ready[5])
        is_mended.set()
        await until(lambda: bus.ready() is None)
    assert got.done == ["a"]


async def test_of_two_readers_the_one_whose_turn_it_is_gets_all_in_order(server: NatsServer) -> None:
    """Also what the other one had in hand when the turn changed."""
    spec, turn = projection(ack_wait_s=1.0), {"first"}
    first, second, wanted = Batches(), Batches(), [str(number) for number in range(40)]

    def refused(details: list[str]) -> None:
        if "20" in details:
            turn.clear()
            raise Unavailable("the turn is over", retry_after_s=0.1)

    first.trouble = refused  # type: ignore[method-assign]

    def reads(got: Batches, name: str) -> Callable[[EventBus], None]:
        return lambda bus: subscribe_batch(bus, spec, got, batch_size=10, is_ours=lambda: name in turn)

    async with (
        running(server, spec, setup=reads(first, "first")) as bus,
        running(server, spec, setup=reads(second, "second")),
    ):
        await publish(bus, wanted)
        await until(lambda: not turn)
        assert second.done == []
        turn.add("second")
        await until(lambda: len(first.done) + len(second.done) >= len(wanted))
    assert first.done + second.done == wanted
    assert first.done
    assert "20" in second.done


async def test_a_batch_waits_for_the_part_of_a_failed_one_whose_nack_was_lost(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `run.stopping` passes a grade that stands before it."""
    spec, got, lost = projection(ack_wait_s=2.0), Batches(), list[int]()

    async def nack_but_the_second(raw: Msg, durable: str, delay_s: float) -> None:
        if raw.metadata.sequence.stream == 2 and not lost:
            lost.append(2)
        else:
            await nack(raw, durable, delay_s)

    def away(details: list[str]) -> None:
        if len(got.seen) == 1:
            raise Unavailable("the database is away", retry_after_s=0.1)

    got.trouble = away  # type: ignore[method-assign]
    monkeypatch.setattr(batches, "nack", nack_but_the_second)
    async with running(server) as bus:
        await publish(bus, ["a", "b", "c"])
    async with running(
        server, spec, setup=lambda bus: subscribe_batch(bus, spec, got, is_ours=lambda: True)
    ) as bus:
        await until(lambda: bool(lost))
        await publish(bus, ["d"])
        await until(lambda: len(got.done) >= 4)
    assert got.done == ["a", "b", "c", "d"]
