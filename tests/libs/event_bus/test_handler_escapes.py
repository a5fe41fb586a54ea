"""Handlers that end in odd ways, and subscribers that stop by themselves, on a real server."""

import asyncio
from typing import Any

import pytest
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import FAST, MODEL, Seen, eyes_on, fact_spec, failed, running, subscribe
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import Delivery
from event_bus.incoming import retry_after_s
from upcycle.errors import Unavailable


@pytest.fixture
def server(nats_server: NatsFactory) -> NatsServer:
    return nats_server()


@pytest.mark.parametrize(
    ("escaped", "reason"),
    [
        (asyncio.CancelledError("by another task"), "CancelledError"),
        (SystemExit(3), "SystemExit(3)"),
        (BaseExceptionGroup("two", [SystemExit(4)]), "SystemExit(4)"),
    ],
)
async def test_what_except_exception_lets_through_is_a_failure_of_the_handler(
    server: NatsServer, escaped: BaseException, reason: str
) -> None:
    """Uncounted, it would come again without a delay for ever, or end the subscriber."""
    spec, seen = fact_spec(max_deliver=3), Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        if delivery.message.detail == "bad":
            raise escaped

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.publish(failed("bad"), model=MODEL, event_id="bad")
        await until(lambda: len(seen.deliveries) == 3)
        await eyes.settled(spec)
        (letter,) = await eyes.dead_letters()
        await bus.publish(failed("good"), model=MODEL, event_id="good")
        await until(lambda: seen.details[3:] == ["good"])
    assert letter.headers["Upcycle-Reason"].startswith("failed 3 times")
    assert reason in letter.headers["Upcycle-Reason"]
    assert seen.gaps()[0] >= 0.09


async def test_a_group_of_nothing_but_unavailable_is_no_failure(server: NatsServer) -> None:
    spec, seen = fact_spec(max_deliver=1), Seen()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        if len(seen.deliveries) < 3:
            inner = ExceptionGroup("two calls", [Unavailable("one", 0.05), Unavailable("other", 0.05)])
            raise ExceptionGroup("a task group", [inner])

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await until(lambda: len(seen.deliveries) == 3)
        await eyes.settled(spec)
        assert await eyes.dead_letters() == []


@pytest.mark.parametrize(
    ("asked_s", "delay_s"),
    [(None, 2.0), (float("nan"), 2.0), (float("inf"), 2.0), (1e30, 300.0), (7.0, 7.0), (-1.0, 0.0)],
)
def test_a_delay_that_the_server_would_not_keep_is_not_asked_of_it(
    asked_s: float | None, delay_s: float
) -> None:
    assert retry_after_s(Unavailable("x", asked_s), FAST) == delay_s


async def test_a_handler_that_swallows_its_cancellation_loses_its_message_and_is_named(
    server: NatsServer,
) -> None:
    spec, seen, release = fact_spec(handler_timeout_s=0.2, ack_wait_s=2.0), Seen(), asyncio.Event()

    async def handler(delivery: Delivery[Any]) -> None:
        seen.note(delivery)
        while len(seen.deliveries) == 1 and not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handler, slots=2)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await until(lambda: len(seen.deliveries) == 2)
        await eyes.settled(spec)
        assert bus.ready() == "handlers that do not end: tested/1"
        release.set()
        await until(lambda: bus.ready() is None)


async def test_a_subscriber_that_stopped_by_itself_makes_the_bus_unready(server: NatsServer) -> None:
    spec = fact_spec()
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, Seen())) as bus:
        assert bus.ready() is None
        await bus._connection.broker.subscribers[0].stop()
        assert bus.ready() == "a consumer ended"
