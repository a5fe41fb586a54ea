"""Two real trainer processes on a real bus and a real object store: the one that holds the run is killed, or
frozen and woken up again, and the other one finishes with the same bits."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest
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

from blob_store.provision import provision_bucket
from service_kit.groups import S3Settings
from upcycle.api.training.v1 import service_pb2 as pb
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceStub
from upcycle.rpc import connect

LEASE_S = 2.0


def environment(around: Outside, folder: Path) -> dict[str, str]:
    """Of a trainer with a folder of its own."""
    folder.mkdir()
    return {**around.environment(folder), "GRPO_TRAINER_LEASE_S": str(LEASE_S)}


async def session(variables: dict[str, str]) -> training.TrainingSession:
    """The run, as that process tells it."""
    async with connect(f"127.0.0.1:{variables['GRPO_TRAINER_GRPC_PORT']}") as channel:
        reply = await TrainingServiceStub(channel).GetSession(pb.GetSessionRequest(run_id=RUN))
        return reply.session


async def holder_is(variables: dict[str, str], port: str) -> None:
    """Wait until that process says that the one on the port holds the run."""
    async with asyncio.timeout(60):
        while True:
            with suppress(grpc.aio.AioRpcError):  # it has not read the submission yet
                if (await session(variables)).holder.endswith(f":{port}"):
                    return
            await asyncio.sleep(0.1)


@pytest.mark.study
@pytest.mark.timeout(300)
@pytest.mark.parametrize("frozen", [False, True])
async def test_another_process_goes_on_and_a_zombie_changes_nothing(
    frozen: bool, tmp_path: Path, s3_settings: S3Settings
) -> None:
    s3_settings = s3_settings.model_copy(update={"bucket": f"{s3_settings.bucket}-{frozen}".lower()})
    provision_bucket(s3_settings)
    reference = World(tmp_path / "reference")
    await run_of_steps(reference)
    async with outside(reference, tmp_path, s3_settings) as around:
        first, second = environment(around, tmp_path / "a"), environment(around, tmp_path / "b")
        async with Process(first, tmp_path / "a.log") as one, Process(second, tmp_path / "b.log") as two:
            await one.start()
            await holder_is(first, first["GRPO_TRAINER_GRPC_PORT"])
            await two.start()
            await holder_is(second, first["GRPO_TRAINER_GRPC_PORT"])
            await publish(reference, around.bus, of_group(0))
            await wait_for(around.bus, 1)
            assert (await session(second)).step == 1  # asked at the holder
            await publish(reference, around.bus, of_group(1))
            await one.send(signal.SIGSTOP if frozen else signal.SIGKILL)
            gone = time.monotonic()
            await holder_is(second, second["GRPO_TRAINER_GRPC_PORT"])
            print(f"held again after {time.monotonic() - gone:.1f} s with a lease of {LEASE_S:g} s")
            for index in range(2, STEPS):
                await publish(reference, around.bus, of_group(index))
            facts = await wait_for(around.bus, STEPS)
            if frozen:
                await one.send(signal.SIGCONT)
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
