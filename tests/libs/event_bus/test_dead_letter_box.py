"""Dead letters as an operator handles them: listed, shown, replayed once, to the reader that gave them up."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from nats.js.api import DiscardPolicy
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import (
    MODEL,
    Eyes,
    Seen,
    command_spec,
    eyes_on,
    fact_spec,
    failed,
    in_time,
    requested,
    running,
    subscribe,
    subscribe_batch,
)
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusSettings, Delivery, EventBus, PoisonMessage
from event_bus.codec import SCHEMA, headers_for
from event_bus.dead_letter_box import DeadLetter, DeadLetterBox
from event_bus.errors import DeadLetterHandled, DeadLetterUndeliverable, UnknownDeadLetter
from event_bus.topology import DLQ
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.errors import Unavailable

SUBJECT = f"up.default.evt.episode.failed.{MODEL}"


@pytest.fixture
def server(nats_server: NatsFactory) -> NatsServer:
    return nats_server()


class Moody(Seen):
    """Gives everything up until it is mended."""

    mended = False

    async def __call__(self, delivery: Delivery[Any]) -> None:
        self.note(delivery)
        if not self.mended:
            raise PoisonMessage("not today")


async def letters(server: NatsServer, num: int, **options: Any) -> list[DeadLetter]:
    """Once there are so many."""
    async with DeadLetterBox.opened(BusSettings(url=server.url)) as box, asyncio.timeout(60):
        while len(found := await box.letters(limit=100, **options)) < num:
            await asyncio.sleep(0.02)
    return found


async def replay(server: NatsServer, number: int) -> DeadLetter:
    async with DeadLetterBox.opened(BusSettings(url=server.url)) as box:
        return await box.replay(number)


async def test_only_the_reader_that_gave_a_fact_up_gets_it_again(server: NatsServer) -> None:
    moody, other, batch_reader = fact_spec("moody"), fact_spec("other"), fact_spec("batches")
    gave_up, content, batched, live = Moody(), Seen(), Seen(), Seen()

    def setup(bus: EventBus) -> None:
        subscribe(bus, moody, gave_up)
        subscribe(bus, other, content)
        subscribe_batch(bus, batch_reader, lambda all_of: note_all(batched, all_of))

    async with running(server, moody, other, batch_reader, setup=setup) as bus, eyes_on(server) as eyes:
        following = asyncio.create_task(follow(bus.replay([EpisodeFailed], after_sequence=0), live))
        await bus.publish(failed("a"), model=MODEL, event_id="id-a")
        (letter,) = await letters(server, 1)
        assert (letter.reader, letter.reason, letter.subject) == ("moody", "not today", SUBJECT)
        assert (letter.event_id, letter.stream, letter.deliveries) == ("id-a", "EVENTS", 1)
        gave_up.mended = True
        await replay(server, letter.number)  # at once: the stream still remembers the id
        await until(lambda: len(gave_up.deliveries) == 2)
        await bus.publish(failed("b"), model=MODEL, event_id="id-b")
        await until(lambda: all(seen.details[-1:] == ["b"] for seen in (gave_up, content, batched, live)))
        await eyes.settled(moody)
        following.cancel()
    first, again, _ = gave_up.deliveries
    assert (again.message, again.subject, again.event_id) == (first.message, first.subject, first.event_id)
    assert again.headers[SCHEMA] == first.headers[SCHEMA]
    assert (content.details, batched.details, live.details) == (["a", "b"], ["a", "b"], ["a", "b"])


async def note_all(seen: Seen, deliveries: Any) -> None:
    for delivery in deliveries:
        seen.note(delivery)


async def follow(deliveries: AsyncIterator[Delivery[Any]], seen: Seen) -> None:
    async for delivery in deliveries:
        seen.note(delivery)


async def test_a_dead_letter_is_replayed_once_and_then_refused_by_name(server: NatsServer) -> None:
    spec, gave_up = fact_spec("moody"), Moody()
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, gave_up)) as bus:
        await bus.publish(failed("a"), model=MODEL, event_id="id-a")
        (letter,) = await letters(server, 1)
        await replay(server, letter.number)
        with pytest.raises(DeadLetterHandled, match=rf"dead letter {letter.number} was handled already"):
            await replay(server, letter.number)
        # It failed again: that is another letter, about the same event.
        second = next(one for one in await letters(server, 1) if one.number != letter.number)
        assert (second.event_id, second.subject) == ("id-a", SUBJECT)
        handled = {one.number: one.is_handled for one in await letters(server, 2, with_handled=True)}
        assert handled == {letter.number: True, second.number: False}
        gave_up.mended = True
        await replay(server, second.number)
        await until(lambda: len(gave_up.deliveries) == 3)
    assert [one.event_id for one in gave_up.deliveries] == ["id-a"] * 3


async def test_two_operators_at_once_replay_it_once(server: NatsServer) -> None:
    spec, gave_up = fact_spec("moody"), Moody()
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, gave_up)) as bus:
        await bus.publish(failed("a"), model=MODEL, event_id="id-a")
        (letter,) = await letters(server, 1)
        gave_up.mended = True
        both = [replay(server, letter.number) for _ in range(4)]
        ends = await asyncio.gather(*both, return_exceptions=True)
        assert sum(isinstance(end, DeadLetter) for end in ends) == 1
        assert sum(isinstance(end, DeadLetterHandled) for end in ends) == 3
        await bus.publish(failed("b"), model=MODEL, event_id="id-b")
        await until(lambda: gave_up.details[-1:] == ["b"])
    assert gave_up.details == ["a", "a", "b"]


async def test_a_replay_that_was_cut_off_before_its_mark_is_repeated_without_a_second_message(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, gave_up = fact_spec("moody"), Moody()

    async def cut_off(*_: object) -> None:
        raise Unavailable("the operator's machine died")

    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, gave_up)) as bus:
        await bus.publish(failed("a"), model=MODEL, event_id="id-a")
        (letter,) = await letters(server, 1)
        gave_up.mended = True
        with monkeypatch.context() as patch:
            patch.setattr(DeadLetterBox, "_mark", cut_off)
            with pytest.raises(Unavailable):
                await replay(server, letter.number)
        await until(lambda: len(gave_up.deliveries) == 2)
        await replay(server, letter.number)
        assert await letters(server, 0) == []
        await bus.publish(failed("b"), model=MODEL, event_id="id-b")
        await until(lambda: gave_up.details[-1:] == ["b"])
    assert gave_up.details == ["a", "a", "b"]


async def test_a_command_comes_back_to_its_queue(server: NatsServer) -> None:
    spec, gave_up = command_spec(), Moody()
    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, gave_up)) as bus,
        eyes_on(server) as eyes,
    ):
        await bus.command(requested("e"), pool="train", model=MODEL, event_id="c")
        (letter,) = await letters(server, 1)
        gave_up.mended = True
        await replay(server, letter.number)
        await until(lambda: len(gave_up.deliveries) == 2)
        await eyes.settled(spec)
    assert [one.subject for one in gave_up.deliveries] == [f"up.default.task.episode.train.{MODEL}"] * 2


async def test_a_reader_that_keeps_its_own_place_gets_it_in_its_next_facts(server: NatsServer) -> None:
    """The trainer: it could not read a fact, was upgraded, and reads on from its place."""
    seen = Seen()
    async with running(server) as bus, eyes_on(server) as eyes:
        following = asyncio.create_task(follow(bus.replay([EpisodeFailed], after_sequence=0), seen))
        headers = dict(headers_for(EpisodeFailed, "id-a"))
        await eyes.jetstream.publish(SUBJECT, b'{"episode": {"purpose": "PURPOSE_NEW"}}', headers=headers)
        (letter,) = await letters(server, 1)
        assert letter.reader == "replay-test"
        await replay(server, letter.number)  # still not upgraded: a new letter
        (again,) = [one for one in await letters(server, 1) if one.number != letter.number]
        assert (again.event_id, again.subject, again.reader) == ("id-a", SUBJECT, "replay-test")
        assert "PURPOSE_NEW" in again.reason
        following.cancel()


async def corrupt(eyes: Eyes) -> int:
    """A message in the stream of dead letters that our code did not write; its number."""
    ack = await eyes.jetstream.publish(f"up.default.dlq.{SUBJECT}", b"?", stream=DLQ)
    return ack.seq


async def test_what_cannot_be_replayed_is_refused_by_name(server: NatsServer) -> None:
    spec, gave_up = fact_spec("moody"), Moody()
    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, gave_up)) as bus,
        eyes_on(server) as eyes,
    ):
        for number in (0, -1, 17, 2**63):
            with pytest.raises(UnknownDeadLetter, match=f"no dead letter {number}"):
                await replay(server, number)
        await bus.publish(failed("a"), model=MODEL, event_id="id-a")
        (letter,) = await letters(server, 1)
        unsigned = await corrupt(eyes)
        with pytest.raises(DeadLetterUndeliverable, match="does not say who gave it up"):
            await replay(server, unsigned)
        await replay(server, letter.number)
        note = await eyes.jetstream.get_last_msg(DLQ, f"up.default.handled.{letter.number}")
        assert note.seq is not None
        with pytest.raises(UnknownDeadLetter):  # the note of a replay is no letter
            await replay(server, note.seq)
        second = max(one.number for one in await letters(server, 2) if one.number != unsigned)
    async with eyes_on(server) as eyes:
        await eyes.jetstream.delete_consumer("EVENTS", "moody")
        with pytest.raises(DeadLetterUndeliverable, match="moody of stream EVENTS, which does not exist"):
            await replay(server, second)


async def test_a_stream_that_takes_no_note_is_not_taken_for_somebody_who_was_first(
    server: NatsServer,
) -> None:
    spec, gave_up = fact_spec("moody"), Moody()
    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, gave_up)) as bus,
        eyes_on(server) as eyes,
        DeadLetterBox.opened(BusSettings(url=server.url)) as box,
    ):
        await bus.publish(failed("a"), model=MODEL, event_id="id-a")
        (letter,) = await letters(server, 1)
        config = (await eyes.jetstream.stream_info(DLQ)).config
        full = replace(config, max_msgs=1, discard=DiscardPolicy.NEW)
        await eyes.jetstream.update_stream(full)
        with pytest.raises(
            Unavailable, match=rf"note that dead letter {letter.number} was handled \(maximum"
        ):
            await box.accept(letter.number)
        with pytest.raises(Unavailable, match="maximum messages exceeded"):
            await box.replay(letter.number)
        await eyes.jetstream.update_stream(config)
        assert (await box.accept(letter.number)).number == letter.number


async def test_no_server_and_no_streams_are_said(server: NatsServer) -> None:
    with pytest.raises(Unavailable, match="not provisioned"):
        await in_time(letters(server, 0))


async def test_the_newest_are_listed(server: NatsServer) -> None:
    spec, gave_up = fact_spec("moody"), Moody()
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, gave_up)) as bus:
        for name in "abcd":
            await bus.publish(failed(name), model=MODEL, event_id=name)
        await letters(server, 4)
        async with DeadLetterBox.opened(BusSettings(url=server.url)) as box:
            assert [one.event_id for one in await box.letters(limit=2)] == ["c", "d"]
            content = await box.content((await box.letters(limit=1))[0].number)
    assert b'"detail": "d"' in content.payload
    assert content.headers["Nats-Msg-Id"] == "d"
    assert not [name for name in content.headers if name.startswith("Upcycle-") and name != SCHEMA]
