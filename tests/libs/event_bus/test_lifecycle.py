"""How a bus starts, drains and ends: bounded, without loss, and never frozen."""

import asyncio
import itertools
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import (
    FAST,
    MODEL,
    Seen,
    Worker,
    command_spec,
    eyes_on,
    fact_spec,
    failed,
    in_time,
    publish_retries,
    requested,
    running,
    subscribe,
    subscribe_ephemeral,
    topology,
)
from tests.libs.event_bus.worker import SPEC
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import (
    EXIT_CONNECTION_CLOSED,
    BusSettings,
    BusTimings,
    Delivery,
    EventBus,
    NotProvisioned,
    OutdatedDurable,
)
from event_bus.provision import provision
from event_bus.topology import EVENTS
from local_stack.nats import NatsLogin
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeCancelled, EpisodeFailed
from upcycle.errors import Unavailable


@pytest.fixture
def server(nats_server: NatsFactory) -> NatsServer:
    return nats_server()


async def test_constructing_and_subscribing_does_no_io() -> None:
    bus = EventBus(BusSettings(url="nats://127.0.0.1:1"), client_name="t")
    subscribe(bus, fact_spec(), Seen())
    assert bus.ready() is not None


async def test_a_bus_without_a_server_says_so_within_its_bound() -> None:
    bus = EventBus(
        BusSettings(url="nats://127.0.0.1:1"), client_name="t", timings=replace(FAST, connect_s=0.5)
    )
    with pytest.raises(Unavailable, match=r"no NATS at nats://127\.0\.0\.1:1 within 0\.5 s"):
        await in_time(bus.start())


@pytest.fixture
def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that waits for provisioning finds that its time is over; it had all of it to connect."""
    clock = SimpleNamespace(monotonic=itertools.count(step=2 * FAST.connect_s).__next__)
    monkeypatch.setattr("event_bus.connection.time", clock)


@pytest.mark.usefixtures("never_waits")
async def test_a_start_creates_nothing_and_names_what_is_missing(server: NatsServer) -> None:
    spec = fact_spec()

    def make() -> EventBus:
        bus = EventBus(BusSettings(url=server.url), client_name="t", topology=topology(spec), timings=FAST)
        subscribe(bus, spec, Seen())
        return bus

    with pytest.raises(NotProvisioned, match=r"stream TASKS does not exist .* run upcycle-provision"):
        await make().start()
    await provision(server.url, topology=topology())
    with pytest.raises(NotProvisioned, match="durable tested of stream EVENTS"):
        await make().start()
    async with eyes_on(server) as eyes:
        assert await eyes.jetstream.consumers_info(EVENTS) == []


async def test_a_start_that_waits_for_streams_is_not_ready_and_names_what_is_missing(
    server: NatsServer,
) -> None:
    spec = fact_spec()
    timings = replace(FAST, connect_s=60)
    bus = EventBus(BusSettings(url=server.url), client_name="t", topology=topology(spec), timings=timings)
    subscribe(bus, spec, Seen())
    starting = asyncio.create_task(bus.start())
    for stage, missing in ((topology(), "stream TASKS"), (topology(spec), "durable tested of stream EVENTS")):
        said = f"{missing} does not exist at {server.url}: run upcycle-provision"
        await until(lambda said=said: bus.ready() == said, said)  # type: ignore[misc]
        await provision(server.url, topology=stage)
    await in_time(starting)
    await until(lambda: bus.ready() is None, "readiness")
    await bus.stop()


async def test_a_service_does_not_change_what_was_provisioned(server: NatsServer) -> None:
    spec = fact_spec(max_ack_pending=7)
    await provision(server.url, topology=topology(spec))
    other = replace(spec, max_ack_pending=99, ack_wait_s=55)
    bus = EventBus(BusSettings(url=server.url), client_name="t", topology=topology(other), timings=FAST)
    subscribe(bus, other, Seen())
    await bus.start()
    async with eyes_on(server) as eyes:
        config = (await eyes.jetstream.consumer_info(EVENTS, spec.durable)).config
        assert config is not None
        assert (config.max_ack_pending, config.ack_wait) == (7, spec.ack_wait_s)
    await bus.stop()


@pytest.mark.usefixtures("never_waits")
async def test_a_durable_that_reads_other_facts_is_named_with_the_way_out(server: NatsServer) -> None:
    spec = fact_spec()
    older = replace(spec, events=(EpisodeCancelled,))
    await provision(server.url, topology=topology(older))
    bus = EventBus(BusSettings(url=server.url), client_name="t", topology=topology(spec), timings=FAST)
    subscribe(bus, spec, Seen())
    with pytest.raises(OutdatedDurable) as caught:
        await bus.start()
    said = str(caught.value)
    again = "'up.*.again.EVENTS.tested.>'"
    assert f"durable tested of stream EVENTS reads [{again}, 'up.*.evt.episode.cancelled.*']" in said
    assert f"this program expects [{again}, 'up.*.evt.episode.failed.*']" in said
    assert "run the upcycle-provision of this version" in said


async def test_a_durable_that_is_updated_while_a_start_waits_is_read(server: NatsServer) -> None:
    spec, seen = fact_spec(), Seen()
    wider = replace(spec, events=(EpisodeFailed, EpisodeCancelled))
    await provision(server.url, topology=topology(spec))
    bus = EventBus(BusSettings(url=server.url), client_name="t", topology=topology(wider), timings=FAST)
    subscribe(bus, wider, seen)
    starting = asyncio.create_task(bus.start())
    await until(lambda: "durable tested" in (bus.ready() or ""))  # connected, and waiting for provisioning
    assert not starting.done()
    await provision(server.url, topology=topology(wider))
    await starting
    await bus.publish(EpisodeCancelled(episode=EpisodeIdentity(episode_id="e")), model=MODEL, event_id="e")
    await until(lambda: len(seen.deliveries) == 1)
    await bus.stop()


async def test_a_start_waits_for_provisioning(server: NatsServer) -> None:
    spec, seen = fact_spec(), Seen()
    bus = EventBus(BusSettings(url=server.url), client_name="t", topology=topology(spec), timings=FAST)
    subscribe(bus, spec, seen)
    starting = asyncio.create_task(bus.start())
    await until(lambda: "stream TASKS" in (bus.ready() or ""))  # connected, and waiting for provisioning
    assert not starting.done()
    await provision(server.url, topology=topology(spec))
    await starting
    assert bus.ready() is None
    await bus.stop()
    assert bus.ready() is not None


async def test_a_stop_lets_handlers_finish_and_takes_nothing_new(server: NatsServer) -> None:
    spec, finished, started = command_spec(ack_wait_s=20), [], Seen()
    release = asyncio.Event()

    async def handler(delivery: Delivery[Any]) -> None:
        started.note(delivery)
        await release.wait()
        finished.append(delivery.message.episode.episode_id)

    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, handler, slots=2)) as bus:
        for n in range(6):
            await bus.command(requested(f"e{n}"), pool="train", model=MODEL, event_id=f"t{n}")
        await until(lambda: len(started.deliveries) == 2)
        stopping = asyncio.create_task(bus.stop())
        await until(lambda: bus.ready() == "stopping")
        assert not stopping.done()
        release.set()
        await stopping
    assert len(finished) == 2
    async with eyes_on(server) as eyes:
        await eyes.settled(spec, left=4)


async def test_a_handler_that_outlasts_the_drain_has_its_message_nacked(server: NatsServer) -> None:
    spec, seen = command_spec(ack_wait_s=60, max_deliver=1), Seen()
    started = asyncio.Event()

    async def endless(_: Delivery[Any]) -> None:
        started.set()
        await asyncio.sleep(60)

    async with running(
        server, spec, setup=lambda bus: subscribe(bus, spec, endless), timings=replace(FAST, drain_s=0.3)
    ) as bus:
        await bus.command(requested("e"), pool="train", model=MODEL, event_id="t")
        await started.wait()
        await in_time(bus.stop())
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, seen)), eyes_on(server) as eyes:
        await until(lambda: len(seen.deliveries) == 1)  # long before the ack wait is over
        await eyes.settled(spec)
        # A drain is no failure, even where the first failure is the last.
        assert await eyes.dead_letters() == []


async def test_a_stop_while_nats_is_down_is_quick_and_quiet(server: NatsServer) -> None:
    spec = fact_spec()
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, Seen(), slots=3)) as bus:
        await asyncio.to_thread(server.kill)
        await until(lambda: bus.ready() is not None)
        await in_time(bus.stop())
        await in_time(bus.stop())


async def test_a_stop_does_not_wait_for_messages_that_will_not_be_read(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    spec = fact_spec()
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, Seen(), slots=3)) as bus:
        client = bus._connection.broker.connection
        await client.subscribe("loose")
        await client.publish("loose", b"not read")
        await client.flush()
        await in_time(bus.stop(), within_s=20)  # the drain of the client would wait for 30 s
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def freeze(server: NatsServer) -> None:
    """Stop every thread of the server; the signal takes effect a moment after it is sent."""
    os.kill(server.pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{server.pid}/task")
    await until(lambda: all(" T " in (task / "stat").read_text() for task in tasks.iterdir()))


async def test_a_stop_beside_a_frozen_server_is_bounded_and_says_so_once(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    spec = fact_spec()
    async with running(server, spec) as bus:
        await freeze(server)
        try:
            await in_time(bus.stop())
        finally:
            os.kill(server.pid, signal.SIGCONT)
    said = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == ["bus_not_flushed"]


async def test_a_bus_is_ready_again_after_an_outage_and_goes_on_consuming(server: NatsServer) -> None:
    spec, seen = fact_spec(), Seen()
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, seen)) as bus:
        await asyncio.to_thread(server.kill)
        await until(lambda: bus.ready() is not None)
        await asyncio.to_thread(server.start)
        await until(lambda: bus.ready() is None)
        await bus.publish(failed("after"), model=MODEL, event_id="after")
        await until(lambda: seen.details == ["after"])


async def test_a_frozen_server_is_noticed_and_survived(server: NatsServer) -> None:
    """SIGSTOP: the connection stands, nothing answers. A publish keeps trying, consumers keep their place."""
    spec, seen = fact_spec(), Seen()
    timings = replace(FAST, publish_timeout_s=0.5)
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, seen), timings=timings) as bus:
        await freeze(server)
        retries = publish_retries()
        publishing = asyncio.create_task(bus.publish(failed("a"), model=MODEL, event_id="a"))
        await until(lambda: publish_retries() > retries)
        assert not publishing.done()
        os.kill(server.pid, signal.SIGCONT)
        await publishing
        await until(lambda: len(seen.deliveries) == 1)
        async with eyes_on(server) as eyes:
            await eyes.settled(spec)
    assert seen.details == ["a"]


async def test_a_server_that_answers_no_ping_is_named_and_connected_to_anew(server: NatsServer) -> None:
    """What a caller may wait for is a trainer's lease: 15 s. No publish is under way that would notice."""
    assert BusTimings().silence_s <= 15
    spec, seen = fact_spec(), Seen()
    timings = replace(FAST, silence_s=3)
    async with running(server, spec, setup=lambda bus: subscribe(bus, spec, seen), timings=timings) as bus:
        await freeze(server)
        try:
            await until(lambda: bus.ready() == "not connected to NATS")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await until(lambda: bus.ready() is None)
        await bus.publish(failed("after"), model=MODEL, event_id="after")
        await until(lambda: seen.details == ["after"])


async def test_a_connection_closed_for_good_ends_the_process_with_70(server: NatsServer) -> None:
    """Otherwise the pull loops spin: no health endpoint, no signal handler, 100 % of a core."""
    await provision(server.url, topology=topology(SPEC))
    async with Worker.started(server.url, "close") as worker:
        assert await worker.exit_status(within_s=30) == EXIT_CONNECTION_CLOSED == 70


async def test_sigterm_finishes_the_message_in_hand_and_exits_0(server: NatsServer) -> None:
    async with running(server, SPEC) as bus, eyes_on(server) as eyes:
        async with Worker.started(server.url, "slow") as worker:
            await bus.publish(failed("a"), model=MODEL, event_id="a")
            await worker.says("start a 1")
            worker.process.send_signal(signal.SIGTERM)
            assert await worker.exit_status(within_s=30) == 0
            assert worker.lines[-2:] == ["done a 1", "down"]
        await eyes.settled(SPEC)


async def test_sigterm_while_nats_is_down_still_exits(server: NatsServer) -> None:
    await provision(server.url, topology=topology(SPEC))
    async with Worker.started(server.url, "idle") as worker:
        await asyncio.to_thread(server.kill)
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.exit_status(within_s=30) == 0


async def test_a_wrong_password_is_said_in_time(tmp_path: Path) -> None:
    with NatsServer(tmp_path, login=NatsLogin("upcycle", "right")) as server:
        settings = BusSettings.model_validate({"url": server.url, "user": "upcycle", "password": "wrong"})
        bus = EventBus(settings, client_name="t", timings=replace(FAST, connect_s=10))
        with pytest.raises(Unavailable, match=r"(?i)authorization"):
            await in_time(bus.start())
        await bus.stop()


async def test_a_bus_that_never_started_stops() -> None:
    bus = EventBus(BusSettings(url="nats://127.0.0.1:1"), client_name="t")
    await bus.stop()


async def test_a_durable_that_was_deleted_and_made_again_is_read_again(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    spec, seen = fact_spec(), Seen()
    async with (
        running(server, spec, setup=lambda bus: subscribe(bus, spec, seen)) as bus,
        eyes_on(server) as eyes,
    ):
        caplog.set_level(logging.DEBUG, "event_bus.faststream_ext.subscriber")
        await eyes.jetstream.delete_consumer(EVENTS, spec.durable)
        await until(lambda: len(failed_fetches(caplog)) >= 4)
        await provision(server.url, topology=topology(spec))
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await until(lambda: seen.details == ["a"])
    times = failed_fetches(caplog)
    # A pause after each failure; without it FastStream's loop would take all of a core.
    assert all(later - earlier > 0.2 for earlier, later in itertools.pairwise(times[1:]))


def failed_fetches(caplog: pytest.LogCaptureFixture) -> list[float]:
    return [record.created for record in caplog.records if record.message == "fetch_failed"]


async def test_a_stop_lets_an_ephemeral_reader_finish_what_it_does(server: NatsServer) -> None:
    finished, started, release = [], asyncio.Event(), asyncio.Event()

    async def handler(delivery: Delivery[Any]) -> None:
        started.set()
        await release.wait()
        finished.append(delivery.message.detail)

    async with running(server, setup=lambda bus: subscribe_ephemeral(bus, [EpisodeFailed], handler)) as bus:
        await bus.publish(failed("a"), model=MODEL, event_id="a")
        await started.wait()
        stopping = asyncio.create_task(bus.stop())
        await until(lambda: bus.ready() == "stopping")
        release.set()
        await in_time(stopping)
    assert finished == ["a"]
