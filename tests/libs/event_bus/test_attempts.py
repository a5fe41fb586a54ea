"""Messages that were answered, while the notes of it are lost or refused: none seems to kill its handler."""

from collections.abc import Awaitable, Callable
from typing import Any

from nats.js.api import DiscardPolicy
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import MODEL, Eyes, eyes_on, fact_spec, failed, running, subscribe
from tests.support.waiting import until

from event_bus import Delivery
from event_bus.attempts import MAX_UNANSWERED
from event_bus.topology import ATTEMPTS
from upcycle.errors import Unavailable

MANY = MAX_UNANSWERED + 2


def waits_often() -> tuple[list[int], Callable[[Delivery[Any]], Awaitable[None]]]:
    """Deliveries so far, and a handler that waits for something in the first MANY of them."""
    seen: list[int] = []

    async def handle(delivery: Delivery[Any]) -> None:
        seen.append(delivery.num_delivered)
        if delivery.num_delivered <= MANY:
            # The last one leaves time to stop the process in.
            raise Unavailable("something that is away for long", 3.0 * (delivery.num_delivered == MANY))

    return seen, handle


async def refuse_notes(eyes: Eyes) -> None:
    """ATTEMPTS is readable and takes nothing."""
    await eyes.jetstream.publish("up.default.attempt.other.EVENTS.1", b"{}")
    info = await eyes.jetstream.stream_info(ATTEMPTS)
    full = info.config.evolve(max_msgs=info.state.messages, discard=DiscardPolicy.NEW)
    await eyes.jetstream.update_stream(full)


async def test_a_message_that_waited_long_outlives_the_loss_of_its_notes(nats_server: NatsFactory) -> None:
    server, spec = nats_server(), fact_spec()
    seen, handle = waits_often()
    async with eyes_on(server) as eyes:
        async with running(server, spec, setup=lambda bus: subscribe(bus, spec, handle)) as bus:
            await bus.publish(failed("a"), model=MODEL, event_id="a")
            await until(lambda: len(seen) == MANY, "the last delivery of the first process")
        await eyes.jetstream.purge_stream(ATTEMPTS)
        async with running(server, spec, setup=lambda bus: subscribe(bus, spec, handle)):
            await until(lambda: len(seen) > MANY, "a delivery that succeeds")
            await eyes.settled(spec)
        assert await eyes.dead_letters() == []


async def test_a_message_that_waits_while_no_note_is_taken_is_not_given_up(nats_server: NatsFactory) -> None:
    server, spec = nats_server(), fact_spec(ack_wait_s=60)
    seen, handle = waits_often()
    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, handle)) as bus,
        eyes_on(server) as eyes,
    ):
        await refuse_notes(eyes)
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await until(lambda: bool(seen) and seen[-1] > MANY, "a delivery that succeeds")
        await eyes.settled(spec)
        assert seen == list(range(1, MANY + 2)), "each delivery was handled"
        assert await eyes.dead_letters() == []
