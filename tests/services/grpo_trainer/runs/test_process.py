"""The real process on a real bus and a real object store, killed with -9 while it trains."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest
from tests.services.grpo_trainer.bench import MODEL, RUN, Trainer, World
from tests.services.grpo_trainer.learners import distance
from tests.services.grpo_trainer.processes import (
    STEPS,
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
from upcycle.api.training.v1 import service_pb2 as training_service
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceStub
from upcycle.rpc import connect

KILLS = 2


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "rounding"), [(1, 0.0), pytest.param(2, 1e-4, marks=pytest.mark.study)])
async def test_killed_again_and_again_it_ends_with_the_weights_of_an_uninterrupted_run(
    ranks: int, rounding: float, tmp_path: Path, s3_settings: S3Settings
) -> None:
    """rounding: two ranks add up in another order, and Adam's first steps magnify it."""
    s3_settings = s3_settings.model_copy(update={"bucket": f"{s3_settings.bucket}-{ranks}"})
    provision_bucket(s3_settings)
    reference, lucky = World(tmp_path / "reference"), random.Random(3)
    await run_of_steps(reference, lr_schedule="cosine", warmup_steps=1)
    async with outside(reference, tmp_path, s3_settings) as around:
        bus, variables = around.bus, around.environment(tmp_path, ranks=ranks)
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
            await check_service(variables)
            assert await process.end(signal.SIGTERM) == 0
        found = await around.weights(STEPS, tmp_path)
    assert_all_trained_once(facts)
    async with Trainer(reference):
        await reference.published(f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}")
    assert distance(await reference.weights(STEPS), found) <= rounding


async def check_service(variables: Mapping[str, str]) -> None:
    """gRPC and operations endpoints of the running process."""
    async with connect(f"127.0.0.1:{variables['GRPO_TRAINER_GRPC_PORT']}") as channel:
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
    operations = f"http://127.0.0.1:{variables['GRPO_TRAINER_HTTP_PORT']}"
    async with aiohttp.ClientSession() as client:
        async with client.get(f"{operations}/readyz") as reply:
            assert reply.status == 200
        async with client.get(f"{operations}/metrics") as reply:
            assert "upcycle_trainer_policy_version" in await reply.text()
