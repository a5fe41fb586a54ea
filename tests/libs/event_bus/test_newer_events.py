"""A publisher one version ahead: its facts have a field more, and no reader of this version loses one."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.conftest import NatsFactory
from tests.libs.event_bus.support import (
    FAST,
    MODEL,
    Eyes,
    Seen,
    eyes_on,
    fact_spec,
    failed,
    running,
    subscribe,
    subscribe_batch,
    subscribe_ephemeral,
    topology,
)
from tests.support.waiting import until

from event_bus import BusSettings, ConsumerSpec, Delivery, EventBus
from event_bus.batches import BatchHandler
from event_bus.codec import encode, headers_for
from event_bus.provision import provision
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeCancelled, EpisodeFailed

SUBJECT = f"up.default.evt.episode.failed.{MODEL}"
ALL = ["0", "1", "2", "3"]


async def publish_two_versions(eyes: Eyes) -> None:
    """Facts 0 and 1 as this version makes them, 2 and 3 with a field that it does not know."""
    for index in range(4):
        body = json.loads(encode(failed(str(index))))
        if index >= 2:
            body["advice"] = {"retry": True}
        headers = headers_for(EpisodeFailed, f"id-{index}")
        await eyes.jetstream.publish(
            SUBJECT, json.dumps(body).encode(), stream="EVENTS", headers=dict(headers)
        )


def read_by(bus: EventBus, one: ConsumerSpec, alone: Seen, batches: ConsumerSpec, batched: Seen) -> None:
    """`alone` notes what the durable `one` brings, `batched` what the batches of `batches` bring."""

    async def handler(deliveries: Sequence[Delivery[Any]]) -> None:
        for delivery in deliveries:
            batched.note(delivery)

    subscribe(bus, one, alone)
    subscribe_batch(bus, batches, handler)


async def test_no_reader_loses_a_fact_that_has_a_field_more(nats_server: NatsFactory) -> None:
    one, batches = fact_spec("one"), fact_spec("batches")
    alone, batched, followed, replayed = Seen(), Seen(), Seen(), Seen()

    def setup(bus: EventBus) -> None:
        read_by(bus, one, alone, batches, batched)
        subscribe_ephemeral(bus, [EpisodeFailed], followed)

    async def replay(bus: EventBus) -> None:
        async for delivery in bus.replay([EpisodeFailed], after_sequence=0):
            replayed.note(delivery)

    server = nats_server()
    async with running(server, one, batches, setup=setup) as bus, eyes_on(server) as eyes:
        replaying = asyncio.create_task(replay(bus))
        await publish_two_versions(eyes)
        await until(lambda: all(len(seen.details) == 4 for seen in (alone, batched, followed, replayed)))
        stored = await bus.stored([EpisodeFailed], after_sequence=0)
        await eyes.settled(one)
        await eyes.settled(batches)
        assert await eyes.dead_letters() == []
        replaying.cancel()
    assert sorted(alone.details) == ALL
    assert (batched.details, followed.details, replayed.details) == (ALL, ALL, ALL)
    assert [delivery.message.detail for delivery in stored] == ALL


async def test_a_type_that_only_the_next_version_knows_waits_for_it(nats_server: NatsFactory) -> None:
    """The durables read a second type already: the next version was provisioned, this one still runs."""
    # Short: a projection waits for what its predecessor left unanswered. So a message may come twice.
    one, batches = fact_spec("one", ack_wait_s=2.0), fact_spec("batches", ack_wait_s=2.0)
    both = (EpisodeFailed, EpisodeCancelled)
    newer = topology(replace(one, events=both), replace(batches, events=both))
    alone, batched = Seen(), Seen()

    server = nats_server()
    await provision(server.url, topology=newer)
    cancelled = EpisodeCancelled(episode=EpisodeIdentity(episode_id="e"))
    old = EventBus(
        BusSettings(url=server.url), client_name="old", topology=topology(one, batches), timings=FAST
    )
    read_by(old, one, alone, batches, batched)
    await old.start()  # a restart in the middle of an upgrade
    async with eyes_on(server) as eyes:
        await old.publish(failed("before"), model=MODEL, event_id="before")
        new = EventBus(BusSettings(url=server.url), client_name="new", topology=newer, timings=FAST)
        await new.start()
        await new.publish(cancelled, model=MODEL, event_id="cancelled")
        await old.publish(failed("after"), model=MODEL, event_id="after")
        await until(lambda: set(alone.details) == {"after", "before"} and "upgrade it" in str(old.ready()))
        assert set(batched.details) == {"before"}  # a projection lets nothing pass
        assert await eyes.dead_letters() == []
    await old.stop()
    await new.stop()
    took: list[str] = []
    upgraded = EventBus(BusSettings(url=server.url), client_name="new", topology=newer, timings=FAST)
    subscribe(upgraded, replace(one, events=both), kept(took, "one"))
    subscribe_batch(upgraded, replace(batches, events=both), kept_batch(took, "batches"))
    await upgraded.start()
    await until(lambda: set(took) == TAKEN)
    await upgraded.stop()


TAKEN = {"batches EpisodeCancelled", "batches EpisodeFailed", "one EpisodeCancelled"}


def kept(took: list[str], name: str) -> Callable[[Delivery[Any]], Awaitable[None]]:
    async def handler(delivery: Delivery[Any]) -> None:
        took.append(f"{name} {delivery.message.DESCRIPTOR.name}")

    return handler


def kept_batch(took: list[str], name: str) -> BatchHandler:
    async def handler(deliveries: Sequence[Delivery[Any]]) -> None:
        took.extend(f"{name} {delivery.message.DESCRIPTOR.name}" for delivery in deliveries)

    return handler
