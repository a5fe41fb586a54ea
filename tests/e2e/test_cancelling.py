"""A training run that is cancelled while it steps, on real processes: the ledger is told one story."""

import asyncio

import pytest
from tests.e2e.test_lifecycle import run_of, until
from tests.e2e.test_loop import assert_conserved, balanced
from tests.platform_recipes import small_training

from local_stack import Stack
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_CANCELLED, RUN_STATE_COMPLETED
from upcycle.api.training.v1.service_pb2 import GetSessionRequest
from upcycle.cli import watching
from upcycle.platform import Platform

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("trainer_dies", [False, True])
async def test_a_run_that_is_cancelled_during_steps_contradicts_nobody(
    stack: Stack, platform: Platform, trainer_dies: bool
) -> None:
    run_id = (await watching.submit(platform, small_training(steps=500))).run_id
    await until(platform, run_id, lambda run: run.step >= 2)
    if trainer_dies:
        await stack.kill("grpo_trainer")
    await platform.tasksets.CancelRun(pb.CancelRunRequest(run_id=run_id, reason="enough"), timeout=10)
    if trainer_dies:
        await stack.wait_ready("grpo_trainer", timeout_s=60)
    run = await until(
        platform, run_id, lambda run: run.state in (RUN_STATE_CANCELLED, RUN_STATE_COMPLETED), limit_s=120
    )
    assert (run.state, run.counts.in_flight) == (RUN_STATE_CANCELLED, 0)
    await asyncio.sleep(2)  # whoever has something left to say says it
    ledger = await balanced(platform, run_id)
    assert_conserved(ledger)
    session = (await platform.training.GetSession(GetSessionRequest(run_id=run_id), timeout=10)).session
    assert session.step == (await run_of(platform, run_id)).step
    assert ledger.by_state["trained"] == run.counts.by_state["trained"]
