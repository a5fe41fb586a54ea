"""What a durable has not read of before a moment: backlog, what is out, and what it gave up."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import MODEL, fact_spec, failed, running, subscribe
from tests.support.waiting import until

from event_bus import BusSettings, Delivery, EventBus, PoisonMessage
from event_bus.dead_letter_box import DeadLetter, DeadLetterBox
from service_kit.clock import utc_now
from upcycle.errors import Unavailable

SPEC = fact_spec("reader")
EVER = timedelta(days=1)


class Held:
    """Handles nothing before it may, and gives up what it is told to."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.numbers: list[str] = []

    async def __call__(self, delivery: Delivery[Any]) -> None:
        await self.may.wait()
        self.numbers.append(delivery.message.detail)
        if delivery.message.detail == "poison":
            raise PoisonMessage("no such model")


async def publish(bus: EventBus, *details: str) -> None:
    for detail in details:
        await bus.publish(failed(detail), model=MODEL, event_id=f"id-{detail}")


async def test_a_backlog_counts_from_its_oldest_message(nats_server: NatsFactory) -> None:
    held = Held()
    async with running(nats_server(), SPEC, setup=lambda bus: subscribe(bus, SPEC, held)) as bus:
        assert await bus.unread(utc_now() + EVER) is None, "nothing was published"
        began: datetime = utc_now()
        await publish(bus, "0", "1", "2")
        assert await bus.unread(began - EVER) is None, "what is unread is younger"
        assert f"reader has 3 messages unread, the oldest of {began:%Y-%m-%d}" in str(
            await bus.unread(utc_now() + EVER)
        )
        held.may.set()

        async def is_read() -> bool:
            return await bus.unread(utc_now() + EVER) is None

        await until(is_read)
        assert held.numbers == ["0", "1", "2"]


async def test_what_was_given_up_is_unread_until_a_person_accepts_it(nats_server: NatsFactory) -> None:
    held, server = Held(), nats_server()
    held.may.set()
    async with running(server, SPEC, setup=lambda bus: subscribe(bus, SPEC, held)) as bus:
        await publish(bus, "poison", "1")

        async def is_given_up() -> bool:
            return "reader gave up 1 message" in str(await bus.unread(utc_now() - EVER))

        await until(is_given_up)
        async with DeadLetterBox.opened(BusSettings(url=server.url)) as box:
            (letter,) = await box.letters(limit=9)
            await box.accept(letter.number)
        assert await bus.unread(utc_now() + EVER) is None


async def test_dead_letters_are_listed_once_until_there_is_another(
    nats_server: NatsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention asks before each batch, hundreds of times in a sweep, beside up to 10,000 dead letters."""
    held, listed, letters = Held(), [0], DeadLetterBox.letters
    held.may.set()

    async def counted(box: DeadLetterBox, **wanted: Any) -> list[DeadLetter]:
        listed[0] += 1
        return await letters(box, **wanted)

    monkeypatch.setattr(DeadLetterBox, "letters", counted)
    async with running(nats_server(), SPEC, setup=lambda bus: subscribe(bus, SPEC, held)) as bus:
        for number in (1, 2):
            await bus.publish(failed("poison"), model=MODEL, event_id=f"id-{number}")
            given_up = f"reader gave up {number} message"

            async def is_known(what: str = given_up) -> bool:
                return what in str(await bus.unread(utc_now() - EVER))

            await until(is_known)
            await is_known()  # what came while they were listed
            before = listed[0]
            for _ in range(5):
                assert await is_known()
            assert listed[0] == before


async def test_a_bus_that_does_not_answer_is_no_answer(nats_server: NatsFactory) -> None:
    server = nats_server()
    async with running(server, SPEC, setup=lambda bus: subscribe(bus, SPEC, Held())) as bus:
        server.kill()
        try:
            why = await bus.unread(utc_now())
        except Unavailable:
            return
        assert why is not None
        server.start()
