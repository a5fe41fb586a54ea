"""`upcycle-grpo-trainer` as a process, on a real bus and a real object store that hold a world's facts."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc
import torch
from safetensors.torch import load_file
from tests.local_servers import NatsServer
from tests.services.grpo_trainer.bench import MODEL, RUN, Episodes, World, submission
from tests.support.waiting import until

from blob_store import S3BlobStore
from event_bus import BusSettings, EventBus
from event_bus.provision import provision
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from policy_files import fetch, load
from service_kit.groups import S3Settings
from service_kit.ports import free_ports
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.registry.v1 import registry_pb2 as registry
from upcycle.api.registry.v1 import service_pb2 as registry_service
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.api.training.v1 import events_pb2 as events

STEPS = 4
SLOW_TRAINER: Final = "tests.services.grpo_trainer.slow_trainer"
"""A program for Process, with the variables of `slow`."""


def slow(variables: Mapping[str, str], step_s: int, **more: str) -> dict[str, str]:
    """Of a trainer whose steps take so much longer. more: further variables."""
    path = f"{Path(__file__).parents[3]}:{os.environ.get('PYTHONPATH', '')}"
    return {**variables, "SLOW_STEP_S": str(step_s), "PYTHONPATH": path, **more}


async def run_of_steps(world: World, steps: int = STEPS, **config: Any) -> None:
    """A run of that many steps of one group each, with all of its facts."""
    await world.publish_base()
    bounds = {"checkpoint_every_steps": steps, "max_staleness": steps}
    world.stream.append(submission(steps=steps, prompts_per_step=1, **bounds, **config))
    await Episodes(world).groups(range(steps))


class Registry(RegistryServiceServicer):
    """Knows one model."""

    def __init__(self, manifest: common.BlobRef) -> None:
        self._head = registry.Checkpoint(checkpoint_id="ckpt-tiny-v00000000", model=MODEL, manifest=manifest)

    async def GetModel(
        self, request: registry_service.GetModelRequest, context: Any
    ) -> registry_service.GetModelResponse:
        return registry_service.GetModelResponse(head=self._head, base=self._head)

    async def GetVersion(
        self, request: registry_service.GetVersionRequest, context: Any
    ) -> registry_service.GetVersionResponse:
        """It has recorded no version yet."""
        await context.abort(grpc.StatusCode.NOT_FOUND, f"no version {request.version}")
        raise AssertionError


_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["grpo_trainer.app"])
"""Imports torch once; each trainer is a fork of that process, and starts in a fraction of a second."""


def _run(environment: dict[str, str], log: str, module: str) -> None:
    """What a fork does: `python -m module`, in that environment."""
    os.environ.clear()
    os.environ.update(environment)
    with Path(log).open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__")


class Process:
    """`upcycle-grpo-trainer` as a child process; none outlives the context."""

    def __init__(self, environment: dict[str, str], log: Path, *, module: str = "grpo_trainer.app") -> None:
        """module: what python runs."""
        self._arguments = (environment, str(log), module)
        self._child: Any = None

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._child is not None:
            await self.end(signal.SIGKILL)

    async def start(self) -> None:
        """Returns when it is ready: before, a signal would meet a process that listens to none."""
        environment, log, _ = self._arguments
        self._child = _FORKS.Process(target=_run, args=self._arguments)
        await asyncio.to_thread(self._child.start)
        url = f"http://127.0.0.1:{environment['GRPO_TRAINER_HTTP_PORT']}/readyz"
        async with aiohttp.ClientSession() as client:

            async def is_ready() -> bool:
                assert self._child.exitcode is None, f"the trainer ended: see {log}"
                return await _answers(client, url)

            await until(is_ready, "a trainer that is ready", timeout_s=60)

    async def send(self, how: signal.Signals) -> None:
        """Send a signal, and wait for nothing."""
        os.kill(self._child.pid, how)

    async def end(self, how: signal.Signals) -> int:
        """Send a signal, and return the exit status."""
        if self._child.exitcode is None:
            os.kill(self._child.pid, how)
        return await self.ended()

    async def ended(self, *, timeout_s: float = 30) -> int:
        """Wait until it has ended, and return the exit status."""
        await asyncio.to_thread(self._child.join, timeout_s)
        assert self._child.exitcode is not None, f"the trainer lives {timeout_s:g} s later"
        return int(self._child.exitcode)


async def _answers(client: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with client.get(url) as reply:
            return reply.status == 200
    except aiohttp.ClientError:  # it does not listen yet
        return False


@asynccontextmanager
async def registry_at(world: World) -> AsyncIterator[GrpcServer]:
    head = world.heads[MODEL].manifest
    manifest = common.BlobRef(key=head.key, sha256=head.sha256, size_bytes=head.size_bytes)
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    server.add(add_RegistryServiceServicer_to_server, Registry(manifest))  # type: ignore[abstract]
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(url: str, settings: S3Settings) -> AsyncIterator[tuple[EventBus, S3BlobStore]]:
    bus, store = EventBus(BusSettings(url=url), client_name="test"), S3BlobStore(settings)
    await store.start()
    await bus.start()
    try:
        yield bus, store
    finally:
        await bus.stop()
        await store.stop()


@dataclass(frozen=True, slots=True)
class Outside:
    """What a trainer's process talks to."""

    nats_url: str
    s3: S3Settings
    registry_address: str
    bus: EventBus
    store: S3BlobStore

    def environment(self, folder: Path, *, ranks: int = 1) -> dict[str, str]:
        """Of a process on a machine of its own: folder and ports."""
        grpc_port, http_port = free_ports(2)
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith("COV_")},
            "UPCYCLE_BUS_URL": self.nats_url,
            "UPCYCLE_S3_ENDPOINT": self.s3.endpoint,
            "UPCYCLE_S3_ACCESS_KEY": self.s3.access_key.get_secret_value(),
            "UPCYCLE_S3_SECRET_KEY": self.s3.secret_key.get_secret_value(),
            "UPCYCLE_S3_BUCKET": self.s3.bucket,
            "UPCYCLE_PEERS_REGISTRY": self.registry_address,
            "GRPO_TRAINER_DATA_DIR": str(folder / "data"),
            "GRPO_TRAINER_GRPC_PORT": str(grpc_port),
            "GRPO_TRAINER_HTTP_PORT": str(http_port),
            "GRPO_TRAINER_NUM_THREADS": "1",
            "GRPO_TRAINER_RANKS": str(ranks),
            "OMP_NUM_THREADS": "1",
        }

    async def weights(self, version: int, folder: Path) -> dict[str, torch.Tensor]:
        """Tensors of a published version."""
        directory = await fetch(self.store, await load(self.store, MODEL, version), folder / "cache")
        return load_file(directory / "model.safetensors")


@asynccontextmanager
async def outside(world: World, folder: Path, s3: S3Settings) -> AsyncIterator[Outside]:
    """Servers that hold the objects of a world, and its submission."""
    with NatsServer(folder / "nats") as nats:
        await provision(nats.url)
        async with registry_at(world) as server, connected(nats.url, s3) as (bus, store):
            for key, data in world.store.objects.items():
                await store.put(key, data)
            await publish(world, bus, slice(1))
            yield Outside(nats.url, s3, server.address, bus, store)


async def publish(world: World, bus: EventBus, facts: slice) -> None:
    """Some facts of the world, on the real bus."""
    for delivery in world.stream.facts[facts]:
        await bus.publish(delivery.message, model=MODEL, event_id=f"{RUN}/{delivery.event_id}")


def of_group(index: int) -> slice:
    """Where the facts about a group lie in the stream: four members each, after the submission."""
    return slice(1 + 4 * index, 5 + 4 * index)


async def wait_for(bus: EventBus, step: int) -> list[Any]:
    """Every fact of the trainer until that step is announced, in the order of the stream: a checkpoint may
    come before the copy of its step."""
    kinds = (events.GroupSettled, events.StepCompleted, events.PolicyPublished, events.CheckpointSaved)
    seen: list[Any] = []
    async with asyncio.timeout(60):
        async for delivery in bus.replay(kinds, after_sequence=0, model=MODEL):
            seen.append(delivery.message)
            done = {type(one) for one in seen if getattr(one, "step", 0) >= step}
            if events.StepCompleted in done and (step < STEPS or events.CheckpointSaved in done):
                break
    return seen


def assert_all_trained_once(facts: Sequence[Any]) -> None:
    """Every trajectory of the run is in one step, and in no other."""
    trained = [one for fact in facts if isinstance(fact, events.StepCompleted) for one in fact.trajectory_ids]
    assert len(trained) == len(set(trained)) == 4 * STEPS
