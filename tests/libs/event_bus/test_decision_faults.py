"""Decisions where something goes wrong: batches cut off on their way, streams of an earlier version, servers
that know no batches.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from nats.aio.client import Client
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import FAST, Seen, eyes_on, fact_spec, subscribe, topology
from tests.libs.event_bus.test_decisions import MODEL, Running, a_step, facts, failed, graded, settled
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusSettings, EventBus, ProvisionRefused
from event_bus.decision_specs import DECISION_SPECS
from event_bus.decisions import MAX_TOGETHER
from event_bus.provision import provision
from event_bus.topology import DECISIONS, EVENTS, STREAMS
from identities import events
from upcycle.api.taskset.v1.events_pb2 import RunStopping
from upcycle.errors import Unavailable

BATCH, NUMBER = "Nats-Batch-Id", "Nats-Batch-Sequence"


@pytest.fixture
async def server(nats_server: NatsFactory) -> NatsServer:
    made = nats_server()
    await provision(made.url)
    return made


class Losing:
    """Loses the second message of the first batches on its way to the server."""

    def __init__(self, client: Client, count: int) -> None:
        self.batches: list[str] = []
        self._publish = client.publish
        self._left = count
        vars(client)["publish"] = self

    async def __call__(self, subject: str, *args: Any, **options: Any) -> None:
        headers = options.get("headers") or {}
        if headers.get(NUMBER) == "2" and self._left:
            self._left -= 1
            self.batches.append(headers[BATCH])
            return
        await self._publish(subject, *args, **options)


def client_of(bus: EventBus) -> Client:
    client: Client = vars(bus)["_connection"].jetstream()._nc
    return client


async def test_a_step_that_lost_a_message_on_its_way_is_published_again_whole(server: NatsServer) -> None:
    async with Running(server, 1) as (bus,):
        words = a_step("g1", "g2", "g3")
        losing = Losing(client_of(bus), 2)
        assert await bus.decide(words) == [word.event for word in words]
        assert len(set(losing.batches)) == 2
        assert await facts(bus, 4) == [word.event for word in words]


async def test_a_step_that_never_arrives_whole_is_unavailable_and_nothing_of_it_stands(
    server: NatsServer,
) -> None:
    timings = replace(FAST, publish_budget_s=0.5)
    trainer = EventBus(BusSettings(url=server.url), client_name="trainer", timings=timings)
    words, instead = a_step("g1", "g2"), settled("g1", "excluded", "planner")
    async with Running(server, 1) as (planner,):
        await trainer.start()
        try:
            Losing(client_of(trainer), 1_000_000)
            with pytest.raises(Unavailable, match="publish again with the same id"):
                await trainer.decide(words)
        finally:
            await trainer.stop()
        assert [await planner.standing(word) for word in words] == [None, None, None]
        assert await planner.decide([instead]) == [instead.event], "what was cut off holds no place"


async def test_the_largest_step_that_a_run_may_ask_for_is_published_as_one(server: NatsServer) -> None:
    most = 999  # tests/libs/upcycle/run_config/bad_runs.py: one more is refused
    assert most + 1 == MAX_TOGETHER
    async with Running(server, 1) as (bus,):
        words = a_step(*(f"g{number}" for number in range(most)))
        assert await bus.decide(words) == [word.event for word in words]
        async with eyes_on(server) as eyes:
            assert (await eyes.jetstream.stream_info(DECISIONS)).state.messages == MAX_TOGETHER


async def test_what_was_published_before_a_decision_is_read_before_it(server: NatsServer) -> None:
    """Grades decided before run.stopping was confirmed may come after it; never the other way round."""
    async with Running(server, 2) as (planner, grader):
        for number in range(40):
            stopping = RunStopping(run_id=f"r{number}")
            event_id = events.run_stopping(f"r{number}", is_final=False)
            await planner.publish(stopping, model=MODEL, event_id=event_id)
            await grader.decide([graded(f"e{number}")])
        found = await facts(planner, 80)
    stops = [found.index(RunStopping(run_id=f"r{number}")) for number in range(40)]
    grades = [found.index(graded(f"e{number}").event) for number in range(40)]
    assert all(stop < grade for stop, grade in zip(stops, grades, strict=True))
    assert grades == sorted(grades)


NOW = replace(topology(fact_spec()), decisions=DECISION_SPECS)
EARLIER = replace(
    topology(fact_spec()),
    streams=tuple(replace(one, copies_from="", copied={}) for one in STREAMS if one.name != DECISIONS),
)
"""The platform before there were decisions."""


async def test_provisioning_adds_decisions_to_a_platform_that_had_none(nats_server: NatsFactory) -> None:
    """A durable keeps its place, and reads what is decided after what it had."""
    server, seen = nats_server(), Seen()
    await provision(server.url, topology=EARLIER)
    async with eyes_on(server) as eyes:
        config = (await eyes.jetstream.stream_info(EVENTS)).config
        assert not config.sources
        for number in range(3):
            await eyes.jetstream.publish(
                "up.default.evt.episode.failed.a%2Eb",
                b'{"detail": "old-%d"}' % number,
                headers={"content-type": "application/json", "Nats-Msg-Id": f"episode.outcome/old-{number}"},
            )
    done = await provision(server.url, topology=NOW)
    assert (done.created, done.updated) == ([DECISIONS], [EVENTS])
    bus = EventBus(BusSettings(url=server.url), client_name="t", timings=FAST, topology=NOW)
    subscribe(bus, fact_spec(), seen)
    await bus.start()
    try:
        for number in range(3):
            await bus.decide([failed(f"new-{number}")])
        await until(lambda: len(seen.deliveries) == 6)
    finally:
        await bus.stop()
    found = [one.message.detail or one.message.episode.episode_id for one in seen.deliveries]
    assert found == ["old-0", "old-1", "old-2", "new-0", "new-1", "new-2"]


@pytest.fixture
def old_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    connect = Client._process_connect_init

    async def as_if_old(self: Client) -> None:
        await connect(self)
        if self._current_server is not None:
            self._current_server.server_version = "2.11.9"

    with monkeypatch.context() as patched:
        patched.setattr(Client, "_process_connect_init", as_if_old)
        yield


async def test_a_server_that_knows_no_batches_is_refused_by_its_version(
    nats_server: NatsFactory, old_server: None
) -> None:
    server = nats_server()
    with pytest.raises(ProvisionRefused, match=r"is 2\.11\.9: decisions need 2\.12 or later"):
        await provision(server.url)
