"""Training runs that are cancelled while they step, on real processes: the ledger is told one story."""

import asyncio
from pathlib import Path

import pytest
from tests.e2e.test_lifecycle import run_of, until
from tests.e2e.test_loop import assert_conserved, balanced
from tests.platform_recipes import MODEL, POLICY_DIR, REPOSITORY, addresses, register_incident, small_training
from tests.support import waiting

from local_stack.stack import Stack, StackSettings
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_CANCELLED, RUN_STATE_COMPLETED, Run
from upcycle.api.training.v1.service_pb2 import GetSessionRequest
from upcycle.platform import Platform
from upcycle.run_client import submit_run

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(400)]


async def cancelled(stack: Stack, platform: Platform, *, after_s: float, trainer_dies: bool) -> Run:
    """A run that was cancelled so long after its first step, with everything that must hold then."""
    run_id = (await submit_run(platform, small_training(steps=500, gate=False))).run_id
    await until(platform, run_id, lambda run: run.step >= 1)
    await asyncio.sleep(after_s)
    if trainer_dies:
        await stack.kill("grpo_trainer")
    await platform.tasksets.CancelRun(pb.CancelRunRequest(run_id=run_id, reason="enough"), timeout=10)
    if trainer_dies:
        await stack.wait_ready("grpo_trainer", timeout_s=180)
    ends = (RUN_STATE_CANCELLED, RUN_STATE_COMPLETED)
    run = await until(platform, run_id, lambda run: run.state in ends, limit_s=120)
    assert (run.state, run.counts.in_flight) == (RUN_STATE_CANCELLED, 0)
    trained = run.counts.by_state["trained"]

    async def is_in_the_ledger() -> bool:
        return (await balanced(platform, run_id)).by_state["trained"] == trained

    await waiting.until(is_in_the_ledger, f"a ledger with {trained} trained episodes")
    assert_conserved(await balanced(platform, run_id))
    return await run_of(platform, run_id)


@pytest.mark.parametrize("trainer_dies", [False, True])
async def test_a_run_that_is_cancelled_during_steps_leaves_no_conflict_in_the_ledger(
    stack: Stack, platform: Platform, trainer_dies: bool
) -> None:
    run = await cancelled(stack, platform, after_s=0.3, trainer_dies=trainer_dies)
    session = await platform.training.GetSession(GetSessionRequest(run_id=run.run_id), timeout=10)
    assert session.session.step == run.step  # the trainer was waited for, so no step is void


@pytest.mark.study
async def test_a_trainer_that_is_not_waited_for_leaves_no_conflict_in_the_ledger(tmp_path: Path) -> None:
    """The planner gives up at once, in the middle of steps; the next run on the model goes on regardless."""
    settings = StackSettings(
        data_dir=tmp_path,
        model=MODEL,
        model_dir=POLICY_DIR,
        environment_roots=(REPOSITORY,),
        ephemeral_ports=True,
        extra_env={"SCENARIO_RUNNER_CANCEL_GRACE_S": "0.01"},
    )
    async with Stack(settings) as impatient:
        await register_incident(impatient)
        async with Platform(addresses(impatient)) as platform:
            before: Run | None = None
            for round_ in range(2):
                run = await cancelled(
                    impatient, platform, after_s=0.25 * round_, trainer_dies=round_ % 2 == 1
                )
                if before is not None:  # its trainer was done with it when this run took its first step
                    assert_conserved(await balanced(platform, before.run_id))
                before = run
