"""The real process on a real bus and a real object store, killed with -9 while it trains."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from safetensors.torch import load_file
from tests.services.grpo_trainer.bench import MODEL, RUN, Episodes, Trainer, World, submission

from blob_store import S3BlobStore
from blob_store.provision import provision_bucket
from event_bus import BusSettings, EventBus
from event_bus.provision import provision
from grpc_edge import GrpcServer, connect
from local_stack.nats import NatsServer
from local_stack.ports import free_ports
from policy_files import fetch, load
from service_kit.groups import S3Settings
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.registry.v1 import registry_pb2 as registry
from upcycle.api.registry.v1 import service_pb2 as registry_service
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.api.training.v1 import service_pb2 as training_service
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceStub

STEPS = 4
KILLS = 2
MIXED = (1.0, 0.0, 0.0, 1.0)


class Registry(RegistryServiceServicer):
    """Knows one model."""

    def __init__(self, manifest: common.BlobRef) -> None:
        self._head = registry.Checkpoint(checkpoint_id="ckpt-tiny-v00000000", model=MODEL, manifest=manifest)

    async def GetModel(
        self, request: registry_service.GetModelRequest, context: Any
    ) -> registry_service.GetModelResponse:
        return registry_service.GetModelResponse(head=self._head, base=self._head)


def free_port() -> int:
    (port,) = free_ports(1)
    return port


class Process:
    """`upcycle-grpo-trainer` as a child process; none outlives the context."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self._environment = environment
        self._log = log
        self._child: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end(signal.SIGKILL)

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "grpo_trainer.app", env=self._environment, stdout=log, stderr=log
            )

    async def end(self, how: signal.Signals) -> int:
        assert self._child is not None
        if self._child.returncode is None:
            self._child.send_signal(how)
        async with asyncio.timeout(30):
            return await self._child.wait()


@asynccontextmanager
async def registry_at(world: World) -> AsyncIterator[GrpcServer]:
    head = world.heads[MODEL].manifest
    manifest = common.BlobRef(key=head.key, sha256=head.sha256, size_bytes=head.size_bytes)
    server = GrpcServer("127.0.0.1", 0, grace_s=0.1)
    server.add(add_RegistryServiceServicer_to_server, Registry(manifest))  # type: ignore[abstract]
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def connected(url: str, settings: S3Settings) -> AsyncIterator[tuple[EventBus, S3BlobStore]]:
    bus, store = EventBus(BusSettings(url=url), client_name="test"), S3BlobStore(settings)
    await store.start()
    await bus.start()
    yield bus, store
    await bus.stop()
    await store.stop()


def environment(
    url: str, s3: S3Settings, folder: Path, registry_address: str, ports: tuple[int, int]
) -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("COV_")},
        "UPCYCLE_BUS_URL": url,
        "UPCYCLE_S3_ENDPOINT": s3.endpoint,
        "UPCYCLE_S3_ACCESS_KEY": s3.access_key.get_secret_value(),
        "UPCYCLE_S3_SECRET_KEY": s3.secret_key.get_secret_value(),
        "UPCYCLE_S3_BUCKET": s3.bucket,
        "UPCYCLE_PEERS_REGISTRY": registry_address,
        "GRPO_TRAINER_DATA_DIR": str(folder / "data"),
        "GRPO_TRAINER_GRPC_PORT": str(ports[0]),
        "GRPO_TRAINER_HTTP_PORT": str(ports[1]),
        "GRPO_TRAINER_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


async def publish(world: World, bus: EventBus, facts: slice) -> None:
    """Some facts of the world, on the real bus."""
    for delivery in world.stream.facts[facts]:
        await bus.publish(delivery.message, model=MODEL, event_id=f"{delivery.event_id}/{RUN}")


def of_group(index: int) -> slice:
    """Where the facts about a group lie in the stream: four members each, after the submission."""
    return slice(1 + 4 * index, 5 + 4 * index)


async def wait_for(bus: EventBus, step: int) -> list[Any]:
    """Every fact of the trainer until that step is announced."""
    kinds = (events.GroupSettled, events.StepCompleted, events.PolicyPublished, events.CheckpointSaved)
    seen: list[Any] = []
    async with asyncio.timeout(60):
        async for delivery in bus.replay(kinds, after_sequence=0, model=MODEL):
            seen.append(delivery.message)
            if isinstance(delivery.message, events.CheckpointSaved) and delivery.message.step >= step:
                break
            if isinstance(delivery.message, events.StepCompleted) and step <= delivery.message.step < STEPS:
                break
    return seen


@pytest.fixture
async def reference(tmp_path: Path) -> World:
    """The same run, uninterrupted, in memory."""
    world = World(tmp_path / "reference")
    await world.publish_base()
    world.stream.append(
        submission(steps=STEPS, prompts_per_step=1, checkpoint_every_steps=STEPS, max_staleness=STEPS)
    )
    for index in range(STEPS):
        await Episodes(world).group(index, MIXED)
    return world


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "rounding"), [(1, 0.0), (2, 1e-4)])
async def test_killed_again_and_again_it_ends_with_the_weights_of_an_uninterrupted_run(
    ranks: int, rounding: float, reference: World, tmp_path: Path, s3_settings: S3Settings
) -> None:
    """rounding: two ranks add up in another order, and Adam's first steps magnify it."""
    s3_settings = s3_settings.model_copy(update={"bucket": f"{s3_settings.bucket}-{ranks}"})
    provision_bucket(s3_settings)
    lucky = random.Random(3)
    with NatsServer(tmp_path / "nats") as nats:
        await provision(nats.url)
        ports = (free_port(), free_port())
        async with (
            registry_at(reference) as registry_server,
            connected(nats.url, s3_settings) as (bus, store),
        ):
            variables = environment(nats.url, s3_settings, tmp_path, registry_server.address, ports)
            variables["GRPO_TRAINER_RANKS"] = str(ranks)
            for key, data in reference.store.objects.items():
                await store.put(key, data)
            await publish(reference, bus, slice(1))
            async with Process(variables, tmp_path / "trainer.log") as process:
                for step in range(1, KILLS + 1):
                    await process.start()
                    await publish(reference, bus, of_group(step - 1))
                    await wait_for(bus, step)
                    await publish(reference, bus, of_group(step))
                    await asyncio.sleep(0.1 * lucky.random())  # somewhere in the next step
                    await process.end(signal.SIGKILL)
                await process.start()
                for index in range(KILLS, STEPS):
                    await publish(reference, bus, of_group(index))
                facts = await wait_for(bus, STEPS)
                await check_service(ports)
                assert await process.end(signal.SIGTERM) == 0
            manifest = await load(store, MODEL, STEPS)
            directory = await fetch(store, manifest, tmp_path / "cache")
    trained = [one for fact in facts if isinstance(fact, events.StepCompleted) for one in fact.trajectory_ids]
    assert len(trained) == 4 * STEPS
    assert len(set(trained)) == 4 * STEPS
    async with Trainer(reference):
        await reference.published(f"checkpoint.saved/ckpt-{MODEL}-v{STEPS:08d}")
    expected, found = await reference.weights(STEPS), load_file(directory / "model.safetensors")
    assert max(float((expected[name] - found[name]).abs().max()) for name in expected) <= rounding


async def check_service(ports: tuple[int, int]) -> None:
    """gRPC and operations endpoints of the running process."""
    async with connect(f"127.0.0.1:{ports[0]}") as channel:
        stub = TrainingServiceStub(channel)
        losses = await stub.ListLosses(training_service.ListLossesRequest())
        assert {"ppo", "gspo", "cispo"} <= set(losses.losses)
        watched = [
            reply async for reply in stub.WatchSession(training_service.WatchSessionRequest(run_id=RUN))
        ]
        session = watched[-1].session
        assert (session.step, session.version, session.state) == (
            STEPS,
            STEPS,
            training.SESSION_STATE_FINISHED,
        )
        assert session.settled["trained"] == STEPS
    async with aiohttp.ClientSession() as client:
        async with client.get(f"http://127.0.0.1:{ports[1]}/readyz") as reply:
            assert reply.status == 200
        async with client.get(f"http://127.0.0.1:{ports[1]}/metrics") as reply:
            assert "upcycle_trainer_policy_version" in await reply.text()
