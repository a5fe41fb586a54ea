"""The server in memory behaves as nats-server does, where the platform relies on it: one suite for both."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import nats
import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import APIError, NotFoundError
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import command_spec, fact_spec, topology
from tests.simulation.jetstream import SimulatedJetStream
from tests.simulation.nats_server import SimulatedServer, matches
from tests.simulation.network import SimulatedNetwork, Weather
from tests.simulation.virtual_time import VirtualLoop, run_virtually

from event_bus import BusSettings, BusTimings
from event_bus.codec import EXPECTED_SEQUENCE, EXPECTED_SUBJECT
from event_bus.errors import AlreadyDecided
from event_bus.provision import provision
from event_bus.publisher import Outgoing, Publisher
from event_bus.topology import DECISIONS, EVENTS, TASKS
from identities import subjects

FACT, OTHER, COMMAND = (
    "up.default.evt.episode.failed.m",
    "up.default.evt.run.finished.m",
    "up.default.task.episode.train.m",
)
TOPOLOGY = topology(fact_spec(ack_wait_s=1.0), command_spec())
Check = Callable[[Any], Coroutine[Any, Any, None]]


async def a_repeated_id_adds_nothing(js: Any) -> None:
    acks = [await js.publish(FACT, b"1", stream=EVENTS, headers={"Nats-Msg-Id": "a"}) for _ in range(2)]
    assert [ack.seq for ack in acks] == [1, 1]
    assert [bool(ack.duplicate) for ack in acks] == [False, True]
    assert (await js.stream_info(EVENTS)).state.last_seq == 1


async def the_first_of_several_authors_wins(js: Any) -> None:
    first = {"Nats-Expected-Last-Subject-Sequence": "0"}
    await js.publish(FACT, b"1", stream=EVENTS, headers=first)
    with pytest.raises(APIError) as refused:
        await js.publish(FACT, b"2", stream=EVENTS, headers=first)
    assert refused.value.err_code == 10071
    await js.publish(OTHER, b"3", stream=EVENTS, headers=first)


async def what_is_not_answered_comes_again(js: Any) -> None:
    await js.publish(FACT, b"1", stream=EVENTS)
    await js.publish(OTHER, b"2", stream=EVENTS)
    subscription = await js.pull_subscribe_bind("tested", stream=EVENTS)
    (first,) = await subscription.fetch(10, timeout=2)
    assert (first.data, first.metadata.num_delivered) == (b"1", 1)
    (again,) = await subscription.fetch(10, timeout=3)  # the ack wait is one second
    assert again.data == b"1"
    assert again.metadata.num_delivered > 1  # 2, unless the machine paused for a second
    await again.nak(delay=0.2)
    (third,) = await subscription.fetch(10, timeout=3)
    assert third.metadata.num_delivered > again.metadata.num_delivered
    await third.ack()
    with pytest.raises((NatsTimeout, TimeoutError)):
        await subscription.fetch(10, timeout=1.5)


async def an_acknowledged_command_is_gone(js: Any) -> None:
    await js.publish(COMMAND, b"1", stream=TASKS)
    subscription = await js.pull_subscribe_bind("worker-train", stream=TASKS)
    (message,) = await subscription.fetch(1, timeout=2)
    info = await js.consumer_info(TASKS, "worker-train")
    assert (info.num_pending, info.num_ack_pending) == (0, 1)
    await message.ack()
    with pytest.raises((NatsTimeout, TimeoutError)):
        await subscription.fetch(1, timeout=1.5)
    assert (await js.stream_info(TASKS)).state.messages == 0


async def the_newest_message_of_a_subject_can_be_read(js: Any) -> None:
    await js.publish(FACT, b"1", stream=EVENTS)
    await js.publish(FACT, b"2", stream=EVENTS)
    assert (await js.get_last_msg(EVENTS, FACT)).data == b"2"
    with pytest.raises(NotFoundError):
        await js.get_last_msg(EVENTS, OTHER)


async def a_batch_is_stored_whole_or_not_at_all_and_copied(js: Any) -> None:
    publisher = Publisher(lambda: js, BusTimings())
    await publisher.publish_together([_decision("e1"), _decision("e2")], stream=DECISIONS)
    with pytest.raises(AlreadyDecided):
        await publisher.publish_together([_decision("e3"), _decision("e2", "other")], stream=DECISIONS)
    await publisher.publish_together([_decision("e4"), _decision("e5")], stream=DECISIONS)
    assert (await js.stream_info(DECISIONS)).state.messages == 4
    while (await js.stream_info(EVENTS)).state.messages < 4:
        await asyncio.sleep(0.02)
    assert (await js.get_last_msg(EVENTS, FACT)).headers["Nats-Msg-Id"] == "e5/"


def _decision(episode: str, author: str = "") -> Outgoing:
    subject = f"up.default.decision.outcome.m.{episode}.failed"
    conditions = {EXPECTED_SEQUENCE: "0", EXPECTED_SUBJECT: subjects.of_any_author(subject)}
    return Outgoing(subject, b"{}", {"Nats-Msg-Id": f"{episode}/{author}", **conditions})


CHECKS = (
    a_batch_is_stored_whole_or_not_at_all_and_copied,
    a_repeated_id_adds_nothing,
    the_first_of_several_authors_wins,
    what_is_not_answered_comes_again,
    an_acknowledged_command_is_gone,
    the_newest_message_of_a_subject_can_be_read,
)
each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@each_check
def test_the_server_in_memory(check: Check) -> None:
    rng = random.Random(1)
    loop = VirtualLoop(rng, lambda process: None)
    network = SimulatedNetwork(loop, rng, Weather())
    run_virtually(loop, check(SimulatedJetStream(SimulatedServer(loop, TOPOLOGY), network)))


@each_check
async def test_a_real_server(check: Check, nats_server: NatsFactory) -> None:
    server = nats_server()
    await provision(BusSettings(url=server.url), topology=TOPOLOGY)
    client = await nats.connect(server.url)
    try:
        await check(client.jetstream())
    finally:
        await client.close()


def test_filters_match_as_nats_says() -> None:
    assert matches("up.*.evt.>", "up.default.evt.run.finished.m")
    assert matches("up.*.evt.run.finished.*", "up.default.evt.run.finished.m")
    assert not matches("up.*.evt.run.finished", "up.default.evt.run.finished.m")
    assert not matches("up.>", "up")
