"""An alarm that comes late: a whole registry beside a whole trajectory store that is behind on the bus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import nats
import pytest
from tests.conftest import NatsFactory
from tests.services.checkpoint_registry.conftest import stack_on
from tests.services.checkpoint_registry.running_registry import PlannerStub, Stack, policy, upload
from tests.services.trajectory_store import events
from tests.services.trajectory_store.running_store import Store, running
from tests.support.waiting import until

from event_bus.provision import provision
from event_bus.topology import TRAJECTORY_STORE_LEDGER
from service_kit.groups import PeerSettings, S3Settings
from upcycle.api.registry.v1 import events_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1.trajectory_pb2 import Subscore

if TYPE_CHECKING:  # generated for type checkers only
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub

MODEL = "late"
NUM_EPISODES = 6


@asynccontextmanager
async def behind(nats_url: str) -> AsyncIterator[None]:
    """The store gets no fact meanwhile, and answers as ever."""
    client = await nats.connect(nats_url)
    names = TRAJECTORY_STORE_LEDGER.stream, TRAJECTORY_STORE_LEDGER.durable
    try:
        await client.jetstream().pause_consumer(*names, (datetime.now(UTC) + timedelta(hours=1)).isoformat())
        yield
        await client.jetstream().resume_consumer(*names)
    finally:
        await client.close()


class PlayingPlanner(PlannerStub):
    """Publishes what the episodes of a pair of versions said before it ends their run."""

    store: Store
    shadow = 1.0
    """What the shadow grader says of each success."""

    async def _announce(self, run_id: str, spec: taskset_pb2.RunSpec) -> None:
        purpose = events.EVAL
        for number in range(NUM_EPISODES):
            body = await self.store.keep_body(number, run_id)
            graded = events.graded(number, run=run_id, purpose=purpose, reward=1.0, body=body)
            graded.subscores.append(Subscore(name="shadow_exact", weight=0.0, value=self.shadow))
            recorded = events.recorded(number, run=run_id, purpose=purpose, body=body)
            requested = events.requested(number, run=run_id, purpose=purpose)
            await self.store.publish(requested, recorded, graded)
        await super()._announce(run_id, spec)


@pytest.fixture
async def nats_url(nats_server: NatsFactory) -> str:
    """Of a bus of its own: its durables are paused."""
    server = nats_server()
    await provision(server.url)
    return server.url


@pytest.fixture
async def stack(nats_url: str, s3_settings: S3Settings, tmp_path: Path) -> AsyncIterator[Stack]:
    """A registry that asks a whole store."""
    async with (
        running(nats_url, s3_settings, tmp_path / "store") as store,
        stack_on(nats_url, s3_settings, tmp_path, {0: 0.3, 1: 0.9}, PlayingPlanner) as made,
    ):
        assert isinstance(made.planner, PlayingPlanner)
        made.planner.store = store
        peers = PeerSettings(tasksets=made.settings.peers.tasksets, trajectories=store.address)
        yield replace(made, settings=made.settings.model_copy(update={"peers": peers}))


async def reason(stub: "RegistryServiceAsyncStub", version: int) -> str:
    """Of a checkpoint; "" before it is recorded."""
    listed = (await stub.ListCheckpoints(pb.ListCheckpointsRequest(model=MODEL))).checkpoints
    return next((one.reason for one in listed if one.version == version), "")


async def test_an_alarm_that_comes_after_the_run_ended_holds_the_candidate(
    stack: Stack, nats_url: str
) -> None:
    """The gate asked once, before the store had read a fact of what the candidate played, and promoted it."""
    assert isinstance(stack.planner, PlayingPlanner)
    stack.planner.shadow = 0.0
    async with stack.registry() as stub:
        await upload(stub, MODEL, policy())
        async with behind(nats_url):
            await stack.save(MODEL, 1)

            async def waits() -> bool:
                return "waits until the monitors" in await reason(stub, 1)

            await until(waits, "the candidate to wait for the monitors")
            assert "trajectory-store_ledger has" in await reason(stub, 1)
        held = await stack.fact(events_pb2.CheckpointHeld, MODEL)
        assert held.reason.startswith("held: open alarm shadow_disagrees of run run-")
        assert "without that it would be promoted" in held.reason
        assert (await stub.GetModel(pb.GetModelRequest(model=MODEL))).model.head_version == 0


async def test_a_candidate_without_an_alarm_is_promoted_once_the_store_has_read_all(
    stack: Stack, nats_url: str
) -> None:
    async with stack.registry() as stub:
        await upload(stub, MODEL, policy())
        async with behind(nats_url):
            await stack.save(MODEL, 1)
            await stack.planner.ordered(1)
        promoted = await stack.fact(events_pb2.CheckpointPromoted, MODEL)
        assert promoted.version == 1
