"""kill -9 of the server and of the service: nothing acknowledged is lost, nothing answered is lost."""

import asyncio

from tests.conftest import NatsFactory
from tests.libs.event_bus.support import MODEL, Seen, Worker, eyes_on, fact_spec, failed, running, subscribe
from tests.libs.event_bus.worker import SPEC
from tests.support.waiting import until

from event_bus.attempts import MAX_UNANSWERED, AttemptNotes


async def test_kill_9_of_the_server_under_load_loses_nothing_that_was_confirmed(
    nats_server: NatsFactory,
) -> None:
    server, spec, seen = nats_server(), fact_spec(max_ack_pending=64, ack_wait_s=2), Seen()
    confirmed: list[str] = []
    killed = asyncio.Event()

    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, seen, slots=8)) as bus,
        eyes_on(server) as eyes,
    ):

        async def load(publisher: int) -> None:
            n = 0
            while not killed.is_set() or len(confirmed) < 200:
                detail = f"{publisher}-{n}"
                await bus.publish(failed(detail), model=MODEL, event_id=detail)
                confirmed.append(detail)
                n += 1

        loads = [asyncio.create_task(load(publisher)) for publisher in range(8)]
        for kills in range(2):
            await until(lambda kills=kills: len(confirmed) >= 100 * (kills + 1))  # type: ignore[misc]
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        killed.set()
        await asyncio.gather(*loads)
        stored = {message.headers["Nats-Msg-Id"] for message in await eyes.stored("EVENTS")}
        assert set(confirmed) <= stored
        await until(lambda: set(seen.details) >= set(confirmed))
        assert len(await eyes.stored("EVENTS")) == len(stored), "an event id was stored twice"


async def test_kill_9_of_a_service_gives_its_message_to_the_next(nats_server: NatsFactory) -> None:
    server = nats_server()
    async with running(server, SPEC) as bus, eyes_on(server) as eyes:
        async with Worker.started(server.url, "sleep") as worker:
            await bus.publish(failed("a"), model=MODEL, event_id="a")
            await worker.says("start a 1")
            worker.process.kill()
        async with Worker.started(server.url, "quick") as worker:
            await until(lambda: any(line.startswith("done a ") for line in worker.lines))
            assert "done a 1" not in worker.lines
            await eyes.settled(SPEC)
        assert await eyes.dead_letters() == []


async def test_a_message_that_kills_its_service_every_time_ends_in_the_dead_letters(
    nats_server: NatsFactory,
) -> None:
    """No handler lives to report a failure, so the deliveries that ended in silence are what counts."""
    server, spec, seen = nats_server(), fact_spec(ack_wait_s=0.3), Seen()
    async with running(server, spec) as bus, eyes_on(server) as eyes:
        await bus.publish(failed("killer"), model=MODEL, event_id="killer")
        sub = await eyes.jetstream.pull_subscribe_bind(spec.durable, stream=spec.stream)
        notes = AttemptNotes(lambda: eyes.jetstream)
        for _ in range(MAX_UNANSWERED):
            (raw,) = await sub.fetch(1, timeout=30)
            await notes.begun(raw)  # as a process does that then dies
        async with running(server, spec, setup=lambda bus: subscribe(bus, spec, seen)):
            await until_letters(eyes, 1)
        assert seen.deliveries == []
        (letter,) = await eyes.dead_letters()
        assert "10 deliveries ended without an answer" in letter.headers["Upcycle-Reason"]


async def until_letters(eyes: object, count: int) -> None:
    from tests.libs.event_bus.support import Eyes

    assert isinstance(eyes, Eyes)

    async def arrived() -> bool:
        return len(await eyes.dead_letters()) >= count

    await until(arrived, f"{count} dead letters")
