"""Three servers as one bus: provisioned while they still choose a leader, and one of them lost."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.local_servers import NatsServer

from event_bus import BusSettings, EventBus
from event_bus.provision import provision
from event_bus.topology import UPCYCLE
from local_stack.nats import NatsMember
from service_kit.ports import free_ports
from upcycle.api.training.v1.events_pb2 import PolicyPublished


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[NatsServer]]:
    """Started at once, and asked at once."""
    ports = tuple(free_ports(3))
    with ExitStack() as running:
        yield [
            running.enter_context(
                NatsServer(tmp_path / str(port), member=NatsMember(f"n-{port}", port, ports))
            )
            for port in ports
        ]


async def test_a_cluster_is_provisioned_before_it_has_a_leader_and_lives_without_a_third(
    servers: list[NatsServer],
) -> None:
    settings = BusSettings(url=",".join(server.url for server in servers))
    done = await provision(settings, replicas=3)
    assert [name for name in done.created if "/" not in name] == [stream.name for stream in UPCYCLE.streams]
    await asyncio.to_thread(servers[0].kill)
    bus = EventBus(settings, client_name="test")
    await bus.start()
    try:
        fact = PolicyPublished(model="incident", version=1)
        assert (await bus.publish(fact, model="incident", event_id="published/1")).sequence == 1
        assert [stored.message for stored in await bus.stored((PolicyPublished,), after_sequence=0)] == [fact]
    finally:
        await bus.stop()
