"""Gaps are alarms: lost, missing, nearly full is named, counted, not ready; what is well is silent."""

import asyncio
import functools
from dataclasses import replace
from typing import Any

import pytest
from nats.js.api import StreamSource
from prometheus_client import REGISTRY
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import (
    FAST,
    MODEL,
    Eyes,
    Seen,
    command_spec,
    eyes_on,
    fact_spec,
    failed,
    requested,
    subscribe,
    topology,
)
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusSettings, CursorBeyondStream, Delivery, EventBus, Topology, watch
from event_bus.dead_letter_box import DeadLetter, DeadLetterBox
from event_bus.holdings import held
from event_bus.provision import provision, stream_config
from event_bus.topology import DLQ, EVENTS, STREAMS, TASKS, ConsumerSpec, StreamSpec
from upcycle.api.taskset.v1.events_pb2 import EpisodeCancelled, EpisodeFailed
from upcycle.errors import Unavailable

SPEC = fact_spec("reader")


class Busy(Seen):
    """Has no time for any command."""

    async def __call__(self, delivery: Delivery[Any]) -> None:
        raise Unavailable("no engine", 60)


@pytest.fixture
def server(nats_server: NatsFactory, monkeypatch: pytest.MonkeyPatch) -> NatsServer:
    """Looks come from the tests alone."""
    monkeypatch.setattr(watch, "LOOK_S", 3600.0)
    return nats_server()


@pytest.fixture
def looks_often(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.05)


async def look(bus: EventBus, times: int = 1) -> str:
    """Several looks; what the readiness says then."""
    for _ in range(times):
        await bus._watch.look()
    return str(bus.ready())


async def publish_beyond(server: NatsServer, bus: EventBus, begin: int, end: int, *, kept: int = 10) -> None:
    """More than the stream's bound lets it keep; the bound is lifted afterwards."""
    await provision(server.url, topology=bounded(EVENTS, max_msgs=kept))
    await publish(bus, begin, end)
    await provision(server.url, topology=topology())


async def open_letters(server: NatsServer) -> list[DeadLetter]:
    async with DeadLetterBox.opened(BusSettings(url=server.url)) as box:
        return await box.letters(limit=10)


async def accept(server: NatsServer, number: int) -> None:
    async with DeadLetterBox.opened(BusSettings(url=server.url)) as box:
        await box.accept(number)


def bounded(name: str, *consumers: ConsumerSpec, **bounds: Any) -> Topology:
    """The platform's streams, one of them with other bounds."""
    applied = topology(*consumers)
    streams = tuple(replace(spec, **bounds) if spec.name == name else spec for spec in applied.streams)
    return replace(applied, streams=streams)


async def started(server: NatsServer, applied: Topology, *readers: tuple[ConsumerSpec, Seen]) -> EventBus:
    bus = EventBus(BusSettings(url=server.url), client_name="test", topology=applied, timings=FAST)
    for spec, seen in readers:
        subscribe(bus, spec, seen)
    await bus.start()
    return bus


async def publish(bus: EventBus, begin: int, end: int) -> None:
    for index in range(begin, end):
        await bus.publish(failed(str(index)), model=MODEL, event_id=f"id-{index}")


def gaps(reader: str) -> float:
    return REGISTRY.get_sample_value("upcycle_bus_gaps_total", {"consumer": reader}) or 0.0


async def test_a_gap_is_an_alarm_also_of_replicas_and_restarts_until_a_person_accepts_it(
    server: NatsServer,
) -> None:
    applied = topology(SPEC)
    await provision(server.url, topology=applied)
    writer, before, seen = await started(server, applied), gaps("reader"), Seen()
    await publish_beyond(server, writer, 0, 30)
    reader, said = (
        await started(server, applied, (SPEC, seen)),
        "EVENTS removed messages 1 to 20 before reader",
    )
    assert str(reader.ready()).startswith(f"alarm: {said}")
    await until(lambda: len(seen.details) == 10)
    assert said in await look(reader, times=3)  # it has caught up, and somebody must see it
    await reader.stop()
    reader, replica = (
        await started(server, applied, (SPEC, seen)),
        await started(server, applied, (SPEC, seen)),
    )
    (letter,) = await open_letters(server)
    assert (letter.is_gap, letter.reader, letter.stream) == (True, "reader", EVENTS)
    for bus in (reader, replica):
        assert f"{said} had read all of them (upcycle bus dead accept {letter.number})" in str(bus.ready())
    assert gaps("reader") == before + 1
    assert reader.unable() is None  # no reason to take the work away from it
    assert await look(writer) == "None"  # it lost nothing
    assert said in "".join(writer.alarms())  # `why` is told what others lost
    await accept(server, letter.number)
    assert [await look(bus) for bus in (reader, replica)] == ["None", "None"]
    for bus in (reader, replica, writer):
        await bus.stop()


def has_read(seen: Seen, last: str) -> bool:
    return seen.details[-1:] == [last]


async def test_the_next_gap_after_an_accepted_one_is_an_alarm_again(server: NatsServer) -> None:
    applied = topology(SPEC)
    await provision(server.url, topology=applied)
    writer = await started(server, applied)
    for begin, removed in ((0, "1 to 20"), (30, "31 to 50")):
        seen = Seen()
        await publish_beyond(server, writer, begin, begin + 30)
        reader = await started(server, applied, (SPEC, seen))
        assert f"removed messages {removed} before" in str(reader.ready())
        await until(functools.partial(has_read, seen, str(begin + 29)))
        await look(reader)  # its place is noted
        await reader.stop()
        (letter,) = await open_letters(server)
        await accept(server, letter.number)
    await writer.stop()


async def test_a_reader_that_lives_and_stands_still_loses_nothing_in_silence(server: NatsServer) -> None:
    """The server moves a durable past a message that was out when it was removed, as if it were read."""
    applied = topology(SPEC)
    await provision(server.url, topology=applied)
    reader = await started(server, applied, (SPEC, Busy()))
    await publish_beyond(server, reader, 0, 30)
    assert "EVENTS removed messages 1 to 20 before reader had read all of them" in await look(reader)
    await reader.stop()


async def test_what_a_frozen_reader_may_have_passed_when_it_woke_up_is_a_gap_unless_another_noted_its_place(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied, seen = topology(SPEC), Seen()
    await provision(server.url, topology=applied)
    reader = await started(server, applied, (SPEC, seen))
    await publish(reader, 0, 5)
    await until(lambda: len(seen.details) == 5)
    assert await look(reader) == "None"
    monkeypatch.setattr(watch, "STOOD_STILL_NS", 0)
    await publish_beyond(server, reader, 5, 30)
    await until(lambda: len(seen.details) == 30)
    assert "EVENTS removed messages 6 to 20 while reader stood still, which may have lost" in await look(
        reader
    )
    (letter,) = await open_letters(server)
    await accept(server, letter.number)
    monkeypatch.setattr(watch, "STOOD_STILL_NS", 3600 * 10**9)
    other = await started(server, applied, (SPEC, seen))
    await publish_beyond(server, reader, 30, 60, kept=20)
    await until(lambda: len(seen.details) == 60)
    assert await look(other, times=2) == "None"
    monkeypatch.setattr(watch, "STOOD_STILL_NS", 0)
    assert await look(reader, times=2) == "None"
    await other.stop()
    await reader.stop()


async def test_a_gap_that_cannot_be_stored_is_named_and_stored_later(server: NatsServer) -> None:
    applied, said = topology(SPEC), "EVENTS removed messages"
    await provision(server.url, topology=applied)
    writer, reader = await started(server, applied), await started(server, applied, (SPEC, Busy()))
    async with eyes_on(server) as eyes:
        await publish_beyond(server, writer, 0, 30)
        await eyes.jetstream.delete_stream(DLQ)
        assert "stream DLQ does not exist" in await look(reader)
        assert said in "".join(reader.alarms())
        await provision(server.url, topology=applied)
    assert f"alarm: {said}" in await look(reader)
    (letter,) = await open_letters(server)
    assert said in letter.reason
    await reader.stop()
    await writer.stop()


async def test_facts_that_were_read_before_they_were_removed_are_no_alarm(server: NatsServer) -> None:
    """Also where the reader's own facts are rare: the removed ones were for others."""
    rare = fact_spec("rare", events=(EpisodeCancelled,))
    applied = topology(SPEC, rare)
    await provision(server.url, topology=applied)
    seen, seldom = Seen(), Seen()
    bus = await started(server, applied, (SPEC, seen), (rare, seldom))
    await publish(bus, 0, 30)
    await until(lambda: len(seen.details) == 30)
    assert await look(bus) == "None"
    await bus.stop()
    bus = await started(server, applied, (SPEC, seen), (rare, seldom))
    await publish_beyond(server, bus, 30, 60, kept=40)
    await until(lambda: len(seen.details) == 60)
    assert await look(bus, times=3) == "None"
    await bus.stop()
    bus = await started(server, applied, (SPEC, seen), (rare, seldom))
    assert bus.ready() is None
    await bus.stop()


@pytest.mark.usefixtures("looks_often")
async def test_a_stream_and_a_durable_that_vanish_are_named_until_they_are_back(server: NatsServer) -> None:
    applied = topology(SPEC)
    await provision(server.url, topology=applied)
    bus = await started(server, applied, (SPEC, Seen()))
    assert bus.ready() is None
    async with eyes_on(server) as eyes:
        await eyes.jetstream.delete_consumer(EVENTS, "reader")
        await until(lambda: "durable reader of stream EVENTS does not exist" in str(bus.ready()))
        await provision(server.url, topology=applied)
        await until(lambda: bus.ready() is None)
        await eyes.jetstream.delete_stream(TASKS)
        await until(lambda: "stream TASKS does not exist: run upcycle-provision" in str(bus.ready()))
        await provision(server.url, topology=applied)
        await until(lambda: bus.ready() is None)
    await bus.stop()


async def test_a_stream_that_was_made_anew_is_named_also_after_a_restart(server: NatsServer) -> None:
    applied = topology(SPEC)
    await provision(server.url, topology=applied)
    seen = Seen()
    bus = await started(server, applied, (SPEC, seen))
    await publish(bus, 0, 3)
    await until(lambda: len(seen.details) == 3)
    assert await look(bus) == "None"
    async with eyes_on(server) as eyes:
        await eyes.jetstream.delete_stream(EVENTS)
        await provision(server.url, topology=applied)
        assert "alarm: stream EVENTS was made anew" in await look(bus)
        await bus.stop()
        for letter in await open_letters(server):
            await accept(server, letter.number)
        await eyes.jetstream.delete_stream(EVENTS)
        await provision(server.url, topology=applied)
    writer = EventBus(BusSettings(url=server.url), client_name="writer", topology=applied, timings=FAST)
    await writer.start()
    await publish(writer, 10, 20)  # more facts than the place of the reader
    bus = await started(server, applied, (SPEC, seen))
    assert "alarm: stream EVENTS was made anew" in str(bus.ready())
    with pytest.raises(CursorBeyondStream, match="cursor 3 is of an earlier stream EVENTS"):
        await anext(bus.replay([EpisodeFailed], after_sequence=3))
    assert "made anew while replay-test was down" in str(bus.ready())
    first = await anext(bus.replay([EpisodeFailed], after_sequence=0))
    assert first.message.detail == "10"
    await bus.stop()
    await writer.stop()


async def test_a_replay_notices_that_its_stream_was_made_anew(server: NatsServer) -> None:
    applied = topology()
    await provision(server.url, topology=applied)
    bus = await started(server, applied)
    await publish(bus, 0, 2)
    replay = bus.replay([EpisodeFailed], after_sequence=0)
    assert [(await anext(replay)).message.detail for _ in range(2)] == ["0", "1"]
    async with eyes_on(server) as eyes:
        await eyes.jetstream.delete_stream(EVENTS)
        await provision(server.url, topology=applied)
    await publish(bus, 10, 20)
    with pytest.raises(CursorBeyondStream, match="made anew"):
        async with asyncio.timeout(60):
            await anext(replay)
    await bus.stop()


async def test_a_bound_that_is_near_is_named_before_it_is_reached(server: NatsServer) -> None:
    spec, seen = command_spec(), Busy()
    applied = bounded(TASKS, spec, max_msgs=10)
    await provision(server.url, topology=applied)
    publisher, bus = await started(server, applied), await started(server, applied, (spec, seen))
    for index in range(7):
        await bus.command(requested(str(index)), pool="train", model=MODEL, event_id=str(index))
    assert await look(bus) == "None"
    await bus.command(requested("7"), pool="train", model=MODEL, event_id="7")
    full = "alarm: stream TASKS is filled to 80% of its bound and refuses more then"
    assert (await look(bus)).startswith(full)
    assert await look(publisher) == "None"  # it reads nothing there
    async with eyes_on(server) as eyes:
        await eyes.jetstream.purge_stream(TASKS)
    assert await look(bus) == "None"
    await bus.stop()
    await publisher.stop()


async def test_a_copied_stream_that_was_made_anew_or_says_nothing_is_an_alarm_of_who_reads_the_copy(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = StreamSpec("COPIED", ("copied.>",))
    applied = replace(topology(SPEC), streams=(copied, *STREAMS))
    await provision(server.url, topology=applied)
    async with eyes_on(server) as eyes:
        facts = (await eyes.jetstream.stream_info(EVENTS)).config
        await eyes.jetstream.update_stream(replace(facts, sources=[StreamSource(name="COPIED")]))
        bus = await started(server, applied, (SPEC, Seen()))
        await eyes.jetstream.publish("copied.a", b"{}")
        await until(lambda: copies_already(eyes))
        assert await look(bus, times=2) == "None"
        await eyes.jetstream.delete_stream("COPIED")
        assert "stream COPIED does not exist" in await look(bus)
        await eyes.jetstream.add_stream(stream_config(copied), first_seq=2)
        assert "alarm: stream COPIED was made anew" in await look(bus)
        monkeypatch.setattr(watch, "SILENT_NS", 0)  # nothing is as young
        silent = "stream EVENTS receives nothing of stream COPIED, which it copies"
        assert silent not in await look(bus)
        assert silent in await look(bus)
    await bus.stop()


async def copies_already(eyes: Eyes) -> bool:
    (source,) = (await eyes.jetstream.stream_info(EVENTS)).sources or []
    return source.active is not None and source.active >= 0


async def test_the_days_that_a_stream_holds_follow_its_present_rate(server: NatsServer) -> None:
    applied = bounded(EVENTS, max_bytes=1 << 20)
    await provision(server.url, topology=applied)
    bus = await started(server, applied)
    await publish(bus, 0, 20)
    await bus.stop()
    settings = BusSettings(url=server.url)
    found = {one.name: one for one in await held(settings, applied)}
    facts = found[EVENTS]
    # 20 messages of 250 to 500 bytes in the last hour are 117 to 234 KiB a day.
    assert facts.days is not None
    assert 4 < facts.days < 9
    assert not facts.is_well
    assert "20 messages" in facts.text
    assert "days at this rate; messages are kept 30 days" in facts.text
    assert found[TASKS].is_well
    async with eyes_on(server) as eyes:
        await eyes.jetstream.delete_stream(EVENTS)
    (lost,) = [one for one in await held(settings, applied) if not one.is_well]
    assert (lost.name, lost.text) == (EVENTS, "does not exist: run upcycle-provision")
