"""Publishing against a real server: confirmed or refused, never lost in silence."""

import asyncio

import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig
from opentelemetry import propagate, trace
from prometheus_client import REGISTRY
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import (
    FAST,
    MODEL,
    eyes_on,
    failed,
    in_time,
    publish_retries,
    requested,
    running,
)
from tests.support.waiting import until

from event_bus import BusError, EventTooLarge, PubAck, QueueFull, UnknownEvent
from event_bus.codec import encode, headers_for, headers_size
from event_bus.topology import EVENTS, MAX_EVENT_BYTES, TASKS
from upcycle.api.common.v1.common_pb2 import BlobRef
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.errors import Unavailable


async def test_a_confirmed_fact_is_stored_once_with_its_headers(nats_server: NatsFactory) -> None:
    server = nats_server()
    async with running(server) as bus, eyes_on(server) as eyes:
        first = await bus.publish(failed("x"), model="a.b", event_id="episode.failed/1")
        again = await bus.publish(failed("x"), model="a.b", event_id="episode.failed/1")
        assert first == PubAck(EVENTS, 1, duplicate=False)
        assert again == PubAck(EVENTS, 1, duplicate=True)
        (stored,) = await eyes.stored(EVENTS)
    assert stored.subject == "up.default.evt.episode.failed.a%2Eb"
    assert stored.data == encode(failed("x"))
    assert stored.headers["content-type"] == "application/json"
    assert stored.headers["Upcycle-Schema"] == "upcycle.api.taskset.v1.EpisodeFailed"
    assert stored.headers["Nats-Msg-Id"] == "episode.failed/1"


async def test_a_repeat_after_a_restart_of_the_server_is_still_a_repeat(nats_server: NatsFactory) -> None:
    server = nats_server()
    async with running(server) as bus:
        await bus.publish(failed("x"), model="m", event_id="one")
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        assert (await bus.publish(failed("x"), model="m", event_id="one")).duplicate


async def test_an_event_of_exactly_the_limit_passes_and_one_byte_more_is_refused(
    nats_server: NatsFactory,
) -> None:
    server = nats_server()
    headers = headers_for(EpisodeFailed, "id")
    with trace.get_tracer("t").start_as_current_span("publish"):
        propagate.inject(headers)  # where this process traces, a publish carries its context, too
    async with running(server) as bus:
        overhead = headers_size(headers) + len(encode(failed("")))
        fits = failed("y" * ((MAX_EVENT_BYTES - overhead) // 2 - 10))
        room = MAX_EVENT_BYTES - headers_size(headers) - len(encode(fits))
        fits.kind += "k" * room
        await bus.publish(fits, model="m", event_id="id")
        fits.kind += "k"
        with pytest.raises(EventTooLarge, match="put the bulk in the object store"):
            await bus.publish(fits, model="m", event_id="ie")
        # The connection survived, which it would not have, had the server seen too much.
        assert bus.ready() is None
        await bus.publish(failed("small"), model="m", event_id="small")


async def test_headers_that_tip_a_message_over_would_cut_the_connection(nats_server: NatsFactory) -> None:
    """Why the guard counts headers: the client does not, and never reconnects after the answer."""
    server = nats_server()
    closed = asyncio.Event()

    async def on_closed() -> None:
        closed.set()

    client: Client = await nats.connect(server.url, max_reconnect_attempts=-1, closed_cb=on_closed)
    await client.publish("x", b"x" * (1024 * 1024 - 10), headers={"a": "b" * 100})
    await in_time(closed.wait())
    assert client.is_closed


async def test_a_type_without_a_subject_is_refused(nats_server: NatsFactory) -> None:
    async with running(nats_server()) as bus:
        with pytest.raises(UnknownEvent, match="BlobRef"):
            await bus.publish(BlobRef(), model="m", event_id="x")


COMMANDS = {"subject": "up.{tenant}.task.episode.train.{model}"}


async def test_a_full_queue_says_so_at_once(nats_server: NatsFactory) -> None:
    server = nats_server()
    async with running(server) as bus, eyes_on(server) as eyes:
        config = (await eyes.jetstream.stream_info(TASKS)).config
        config.max_msgs = 2
        await eyes.jetstream.update_stream(config)
        for n in range(2):
            await bus.command(requested(f"e{n}"), pool="train", model=MODEL, event_id=f"t{n}")
        retries = REGISTRY.get_sample_value("upcycle_bus_publish_retries_total", COMMANDS)
        with pytest.raises(QueueFull, match="slow down"):
            await bus.command(requested("e2"), pool="train", model=MODEL, event_id="t2")
        assert REGISTRY.get_sample_value("upcycle_bus_publish_retries_total", COMMANDS) == retries
        assert len(await eyes.stored(TASKS)) == 2


async def test_a_full_queue_of_one_model_leaves_room_for_the_others(nats_server: NatsFactory) -> None:
    server = nats_server()
    async with running(server) as bus, eyes_on(server) as eyes:
        config = (await eyes.jetstream.stream_info(TASKS)).config
        assert config.max_msgs_per_subject < (config.max_msgs or 0)
        config.max_msgs_per_subject = 2
        await eyes.jetstream.update_stream(config)
        for n in range(2):
            await bus.command(requested(f"e{n}"), pool="train", model=MODEL, event_id=f"t{n}")
        with pytest.raises(QueueFull, match="per subject"):
            await bus.command(requested("e2"), pool="train", model=MODEL, event_id="t2")
        await bus.command(requested("e2"), pool="eval", model=MODEL, event_id="t3")
        await bus.command(requested("e2"), pool="train", model="other", event_id="t4")
        assert [one.subject for one in await eyes.stored(TASKS)] == [
            "up.default.task.episode.train.incident",
            "up.default.task.episode.train.incident",
            "up.default.task.episode.eval.incident",
            "up.default.task.episode.train.other",
        ]


async def test_a_publish_outlives_an_outage(nats_server: NatsFactory) -> None:
    server = nats_server()
    async with running(server) as bus:
        await asyncio.to_thread(server.kill)
        publishing = asyncio.create_task(bus.publish(failed("x"), model="m", event_id="one"))
        await until(lambda: bus.ready() is not None)
        assert not publishing.done()
        await asyncio.to_thread(server.start)
        assert (await publishing).sequence == 1


async def test_nothing_confirms_where_no_stream_listens(nats_server: NatsFactory) -> None:
    server = nats_server()
    from dataclasses import replace

    async with running(server, timings=replace(FAST, publish_budget_s=3.0)) as bus, eyes_on(server) as eyes:
        await eyes.jetstream.delete_stream(EVENTS)
        retries = publish_retries()
        with pytest.raises(Unavailable, match=r"within 3 s .* publish again with the same id"):
            await in_time(bus.publish(failed("x"), model="m", event_id="one"))
        assert publish_retries() > retries


async def test_a_stream_that_is_not_the_expected_one_is_no_confirmation(nats_server: NatsFactory) -> None:
    server = nats_server()
    async with running(server) as bus, eyes_on(server) as eyes:
        await eyes.jetstream.delete_stream(EVENTS)
        await eyes.jetstream.add_stream(StreamConfig(name="OTHER", subjects=["up.*.evt.>"]))
        with pytest.raises(BusError, match="stream EVENTS refuses"):
            await bus.publish(failed("x"), model="m", event_id="one")
        assert await eyes.stored("OTHER") == []


async def test_a_publish_waits_for_its_stream_as_it_would_for_a_new_leader(nats_server: NatsFactory) -> None:
    server = nats_server()
    async with running(server) as bus, eyes_on(server) as eyes:
        await eyes.jetstream.delete_stream(EVENTS)
        retries = publish_retries()
        publishing = asyncio.create_task(bus.publish(failed("x"), model="m", event_id="one"))
        await until(lambda: publish_retries() > retries)
        assert not publishing.done()
        await eyes.jetstream.add_stream(StreamConfig(name=EVENTS, subjects=["up.*.evt.>"]))
        assert (await publishing).stream == EVENTS


def test_the_retry_budget_outlasts_the_election_of_a_leader() -> None:
    from event_bus import BusTimings

    assert BusTimings().publish_budget_s >= 15
