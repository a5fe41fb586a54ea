"""One message at a time: what each way to end a handler does to the message, on a real server."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import (
    FAST,
    MODEL,
    Seen,
    command_spec,
    eyes_on,
    fact_spec,
    failed,
    requested,
    running,
    subscribe,
)
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusError, Delivery, EventBus, PoisonMessage
from event_bus.topology import ATTEMPTS, DLQ
from upcycle.errors import Unavailable

SUBJECT = f"up.default.evt.episode.failed.{MODEL}"


@pytest.fixture
def server(nats_server: NatsFactory) -> NatsServer:
    return nats_server()


async def test_a_return_acknowledges(server: NatsServer) -> None:
    spec, seen = fact_spec(), Seen()
    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, seen)) as bus,
        eyes_on(server) as eyes,
    ):
        ack = await bus.publish(failed("a"), model=MODEL, event_id="id-a")
        await until(lambda: len(seen.deliveries) == 1)
        await eyes.settled(spec)
        stored = await eyes.jetstream.get_msg("EVENTS", ack.sequence)
    (got,) = seen.deliveries
    assert (got.message, got.subject, got.event_id) == (failed("a"), SUBJECT, "id-a")
    assert (got.sequence, got.num_delivered) == (ack.sequence, 1)
    assert stored.time is not None
    assert abs(got.published_at - stored.time) < timedelta(milliseconds=1)  # the two are rounded differently


async def test_a_failure_comes_again_with_growing_delay_then_goes_to_the_dead_letters(
    server: NatsServer,
) -> None:
    spec, seen = fact_spec(max_deliver=4), Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        if delivery.message.detail == "bad":
            seen.note(delivery)
            raise ValueError("cannot\nwork")

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.publish(failed("bad"), model=MODEL, event_id="bad")
        await until(lambda: len(seen.deliveries) == 4)
        await eyes.settled(spec)
        (letter,) = await eyes.dead_letters()
        assert await eyes.stored(ATTEMPTS)
    assert [one.num_delivered for one in seen.deliveries] == [1, 2, 3, 4]
    assert [one.failures for one in seen.deliveries] == [0, 1, 2, 3]
    first, second, third = seen.gaps()  # lower bounds: the server waits for the delay of the nack
    assert first >= 0.09
    assert second >= 1.5 * 0.1
    assert third >= 1.5 * 0.2
    assert letter.subject == f"up.default.dlq.{SUBJECT}"
    assert letter.headers["Upcycle-Reason"] == "failed 4 times, last: ValueError('cannot\\nwork')"
    assert letter.headers["Upcycle-Event-Id"] == "bad"
    assert letter.headers["Upcycle-Stream"] == "EVENTS"
    assert letter.headers["Upcycle-Consumer"] == "tested"
    assert letter.headers["Upcycle-Deliveries"] == "4"
    assert letter.headers["Nats-Msg-Id"] == "dlq-EVENTS-tested-1"


@pytest.mark.parametrize(
    ("payload", "headers", "reason"),
    [
        (b"{not json", {}, "not a upcycle.api.taskset.v1.EpisodeFailed"),
        (b'{"mood": "good"}', {}, "mood"),
        (b"0", {}, "not a upcycle"),
        (b"{}", {"Upcycle-Schema": "upcycle.api.taskset.v1.RunFinished"}, "RunFinished"),
    ],
)
async def test_poison_goes_to_the_dead_letters_with_its_reason_and_the_loop_goes_on(
    server: NatsServer, payload: bytes, headers: dict[str, str], reason: str
) -> None:
    spec, seen = fact_spec(), Seen()
    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, seen)) as bus,
        eyes_on(server) as eyes,
    ):
        await eyes.jetstream.publish(SUBJECT, payload, headers=headers or None)
        await bus.publish(failed("good"), model=MODEL, event_id="good")
        await until(lambda: len(seen.deliveries) == 1)
        await eyes.settled(spec)
        (letter,) = await eyes.dead_letters()
    assert seen.details == ["good"]
    assert letter.data == payload
    assert reason in letter.headers["Upcycle-Reason"]
    assert letter.headers["Upcycle-Deliveries"] == "1"


async def test_a_poison_message_is_delivered_once(server: NatsServer) -> None:
    spec, seen = fact_spec(), Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        raise PoisonMessage("unknown run")

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await until(lambda: len(seen.deliveries) == 1)
        await eyes.settled(spec)
        (letter,) = await eyes.dead_letters()
    assert letter.headers["Upcycle-Reason"] == "unknown run"
    assert len(seen.deliveries) == 1


async def test_unavailable_is_no_failure_however_often(server: NatsServer) -> None:
    spec, seen = fact_spec(max_deliver=2), Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        if len(seen.deliveries) == 4:
            raise ValueError("one real failure")
        if len(seen.deliveries) < 7:
            raise Unavailable("no engine yet", 0.05)

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await until(lambda: len(seen.deliveries) == 7)
        await eyes.settled(spec)
        assert await eyes.dead_letters() == []


async def test_failures_are_counted_across_restarts_of_the_service(server: NatsServer) -> None:
    spec, seen = fact_spec(max_deliver=3), Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        raise ValueError("always")

    def setup(bus: EventBus) -> None:
        subscribe(bus, spec, handler)

    async with running(server, spec, setup=setup) as bus:
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await until(lambda: len(seen.deliveries) == 2)
    async with running(server, spec, setup=setup), eyes_on(server) as eyes:
        await until(lambda: len(seen.deliveries) == 3)
        await eyes.settled(spec)
        (letter,) = await eyes.dead_letters()
    assert letter.headers["Upcycle-Deliveries"] == "3"
    assert letter.headers["Upcycle-Reason"].startswith("failed 3 times")


async def test_heartbeats_keep_a_slow_handlers_message_its_own(server: NatsServer) -> None:
    spec, seen, done = fact_spec(ack_wait_s=5.0), Seen(), asyncio.Event()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        await asyncio.sleep(1.5 * spec.ack_wait_s)  # a beat each 1.7 s: a pause of 3 s costs none too many
        done.set()

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler, slots=2)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.publish(failed("slow"), model=MODEL, event_id="slow")
        await done.wait()
        await eyes.settled(spec)
    assert [one.num_delivered for one in seen.deliveries] == [1]


async def test_a_handler_without_end_has_failed(server: NatsServer) -> None:
    spec, seen = fact_spec(handler_timeout_s=0.2, max_deliver=1), Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        await asyncio.sleep(60)

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.publish(failed("stuck"), model=MODEL, event_id="stuck")
        await until(lambda: len(seen.deliveries) == 1)
        await eyes.settled(spec)
        (letter,) = await eyes.dead_letters()
    assert "TimeoutError" in letter.headers["Upcycle-Reason"]


async def test_slots_bound_what_is_taken_not_only_what_runs(server: NatsServer) -> None:
    """More workers on one pull loop take messages they do not work on; those time out and run twice."""
    spec, starts, running_now, peak, taken = command_spec(), 0, 0, 0, 0
    all_slots = asyncio.Event()

    async def handler(_: Delivery[Any]) -> None:
        nonlocal starts, running_now, peak
        starts, running_now = starts + 1, running_now + 1
        peak = max(peak, running_now)
        if peak == 4:
            all_slots.set()
        await all_slots.wait()
        await asyncio.sleep(0.2)
        running_now -= 1

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler, slots=4)) as bus,
        eyes_on(server) as eyes,
    ):
        for n in range(16):
            await bus.command(requested(f"e{n}"), pool="train", model=MODEL, event_id=f"t{n}")
        while starts < 16:
            taken = max(taken, (await eyes.pending(spec))[1])
            await asyncio.sleep(0.02)
        await eyes.settled(spec)
    assert (starts, peak) == (16, 4)
    # The server gets an acknowledgement a moment after the slot asked for the next message. All 16 are taken
    # where nothing bounds it.
    assert taken <= 12


async def test_replicas_share_the_work_of_a_durable(server: NatsServer) -> None:
    spec, here, there, both = command_spec(), Seen(), Seen(), asyncio.Event()

    def slow(seen: Seen) -> Any:
        async def handler(delivery: Delivery[Any]) -> None:
            seen.deliveries.append(delivery)
            if min(len(here.deliveries), len(there.deliveries)) == 2:
                both.set()
            await both.wait()  # no slot is free again before each replica fills its two

        return handler

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, slow(here), slots=2)) as bus,
        running(server, spec, setup=lambda bus: subscribe(bus, spec, slow(there), slots=2)),
    ):
        for n in range(40):
            await bus.command(requested(f"e{n}"), pool="train", model=MODEL, event_id=f"t{n}")
        await until(lambda: len(here.deliveries) + len(there.deliveries) == 40)
    ids = [one.event_id for one in here.deliveries + there.deliveries]
    assert len(set(ids)) == 40


async def test_pools_are_apart(server: NatsServer) -> None:
    train, evaluate = command_spec("train"), command_spec("eval")
    got: dict[str, list[str]] = {"train": [], "eval": []}

    def into(pool: str) -> Any:
        async def handler(delivery: Delivery[Any]) -> None:
            got[pool].append(delivery.message.episode.episode_id)

        return handler

    def setup(bus: EventBus) -> None:
        subscribe(bus, train, into("train"))
        subscribe(bus, evaluate, into("eval"))

    async with running(server, train, evaluate, setup=setup) as bus:
        await bus.command(requested("a"), pool="eval", model=MODEL, event_id="a")
        await bus.command(requested("b"), pool="train", model=MODEL, event_id="b")
        await until(lambda: bool(got["train"] and got["eval"]))
    assert got == {"train": ["b"], "eval": ["a"]}


async def test_a_dead_letter_that_cannot_be_stored_keeps_the_message(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    spec, seen = fact_spec(max_deliver=1), Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        raise PoisonMessage("hopeless")

    timings = replace(FAST, publish_budget_s=0.3)
    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler), timings=timings) as bus,
        eyes_on(server) as eyes,
    ):
        config = (await eyes.jetstream.stream_info(DLQ)).config
        await eyes.jetstream.delete_stream(DLQ)
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await until(lambda: "dead_letter_not_stored" in caplog.messages)
        assert (await eyes.pending(spec))[1] == 1
        await eyes.jetstream.add_stream(config)
        await eyes.settled(spec)
        assert len(await eyes.dead_letters()) == 1


async def test_subscribing_after_the_start_is_refused(server: NatsServer) -> None:
    spec = fact_spec()
    async with running(server, spec) as bus:
        with pytest.raises(BusError, match="before the bus is started"):
            subscribe(bus, spec, Seen())
