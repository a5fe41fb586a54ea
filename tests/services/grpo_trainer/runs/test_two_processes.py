"""Two real trainer processes on a real bus and a real object store: the one that holds the run is killed,
frozen and woken up again, or cut off from the bus for a while, and the other finishes with the same bits."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import grpc.aio
import pytest
from tests.chaos.proxy import Link, LinkMode
from tests.services.grpo_trainer.bench import MODEL, RUN, Trainer, World
from tests.services.grpo_trainer.learners import distance
from tests.services.grpo_trainer.processes import (
    STEPS,
    Outside,
    Process,
    assert_all_trained_once,
    of_group,
    outside,
    publish,
    run_of_steps,
    wait_for,
)

from blob_store import BlobStore
from blob_store.provision import provision_bucket
from grpo_trainer.adapters.trainers_store import TrainersStore
from grpo_trainer.settings import GrpoTrainerSettings
from service_kit.groups import S3Settings
from upcycle.api.training.v1 import service_pb2 as pb
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceStub
from upcycle.rpc import connect

LEASE_S = float(GrpoTrainerSettings.model_fields["lease_s"].default)
BEAT_S = LEASE_S / 5
"""Between two rounds of a process, as its README says."""
TAKEN_WITHIN_S = 15.0


def environment(around: Outside, folder: Path) -> dict[str, str]:
    """Of a trainer with a folder of its own."""
    folder.mkdir()
    return around.environment(folder)


@dataclass
class Rounds:
    """What a process that lives does meanwhile: a machine that pauses delays its rounds, and after a pause
    of its own it gives the others their time again."""

    beat: int
    at: float
    lost_s: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def see(self, beat: int, now: float) -> None:
        """Count what its last rounds took beyond their usual time."""
        if beat > self.beat:
            took_s, rounds = now - self.at, beat - self.beat
            self.lost_s += max(0.0, took_s - rounds * BEAT_S)
            if took_s / rounds > LEASE_S / 2:
                self.lost_s += LEASE_S
            self.beat, self.at = beat, now


async def newest_beat(store: BlobStore, port: str) -> int:
    """Of the process on that port."""
    records = (await TrainersStore(store).look()).records.values()
    return next(one.beat for one in records if one.address.endswith(f":{port}"))


async def taken_in_time(around: Outside, by: dict[str, str]) -> None:
    """Wait until that process says that it holds the run, which must be within 15 s and its pauses."""
    port = by["GRPO_TRAINER_GRPC_PORT"]
    rounds = Rounds(await newest_beat(around.store, port), time.monotonic())
    taking = asyncio.create_task(holder_is(by, port, timeout_s=120))
    while not taking.done():
        await asyncio.wait({taking}, timeout=0.1)
        rounds.see(await newest_beat(around.store, port), time.monotonic())
    taking.result()
    took_s = time.monotonic() - rounds.began
    print(
        f"held again after {took_s:.1f} s, {rounds.lost_s:.1f} s of them lost, with a lease of {LEASE_S:g} s"
    )
    assert took_s <= TAKEN_WITHIN_S + rounds.lost_s


@asynccontextmanager
async def link_to_bus(around: Outside) -> AsyncIterator[Link]:
    """The first process's way to NATS."""
    server = urlsplit(around.nats_url)
    assert server.hostname is not None
    assert server.port is not None
    link = Link("grpo_trainer", "nats", ((server.hostname, server.port),))
    await link.serve()
    try:
        yield link
    finally:
        await link.close()


async def goes(how: str, one: Process, link: Link) -> None:
    """The holder is gone, in one of three ways."""
    if how == "cut":
        link.set(LinkMode.CUT)
    else:
        await one.send(signal.SIGSTOP if how == "frozen" else signal.SIGKILL)


async def comes_back(how: str, one: Process, link: Link) -> None:
    """It knows nothing of what happened meanwhile."""
    link.set(LinkMode.OPEN)
    if how == "frozen":
        await one.send(signal.SIGCONT)


async def session(variables: dict[str, str]) -> training.TrainingSession:
    """The run, as that process tells it."""
    async with connect(f"127.0.0.1:{variables['GRPO_TRAINER_GRPC_PORT']}") as channel:
        reply = await TrainingServiceStub(channel).GetSession(pb.GetSessionRequest(run_id=RUN))
        return reply.session


async def holder_is(variables: dict[str, str], port: str, *, timeout_s: float = 60) -> None:
    """Wait until that process says that the one on the port holds the run."""
    async with asyncio.timeout(timeout_s):
        while True:
            with suppress(grpc.aio.AioRpcError):  # it has not read the submission yet
                if (await session(variables)).holder.endswith(f":{port}"):
                    return
            await asyncio.sleep(0.1)


@pytest.mark.study
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["killed", "frozen", "cut"])
async def test_another_process_goes_on_and_a_zombie_changes_nothing(
    how: str, tmp_path: Path, s3_settings: S3Settings
) -> None:
    s3_settings = s3_settings.model_copy(update={"bucket": f"{s3_settings.bucket}-{how}"})
    provision_bucket(s3_settings)
    reference = World(tmp_path / "reference")
    await run_of_steps(reference)
    async with outside(reference, tmp_path, s3_settings) as around, link_to_bus(around) as link:
        first, second = environment(around, tmp_path / "a"), environment(around, tmp_path / "b")
        first["UPCYCLE_BUS_URL"] = f"nats://{link.address}"
        async with Process(first, tmp_path / "a.log") as one, Process(second, tmp_path / "b.log") as two:
            await one.start()
            await holder_is(first, first["GRPO_TRAINER_GRPC_PORT"])
            await two.start()
            await holder_is(second, first["GRPO_TRAINER_GRPC_PORT"])
            await publish(reference, around.bus, of_group(0))
            await wait_for(around.bus, 1)
            assert (await session(second)).step == 1  # asked at the holder
            await publish(reference, around.bus, of_group(1))
            await goes(how, one, link)
            await taken_in_time(around, second)
            for index in range(2, STEPS):
                await publish(reference, around.bus, of_group(index))
            facts = await wait_for(around.bus, STEPS)
            if how != "killed":
                await comes_back(how, one, link)
                await holder_is(first, second["GRPO_TRAINER_GRPC_PORT"])
                assert (await session(first)).step == STEPS
                assert await one.end(signal.SIGTERM) == 0
                facts = await wait_for(around.bus, STEPS)
            assert await two.end(signal.SIGTERM) == 0
        found = await around.weights(STEPS, tmp_path)
    assert_all_trained_once(facts)
    async with Trainer(reference):
        await reference.published(f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}")
    assert distance(await reference.weights(STEPS), found) == 0.0
