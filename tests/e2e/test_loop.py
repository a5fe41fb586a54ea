"""The loop on real processes: evaluate, train, promote, serve; then the same under kill -9."""

import asyncio

import pytest
from openai import AsyncOpenAI, AuthenticationError
from tests.platform_recipes import HELD_OUT_TASKSET, MODEL, addresses, evaluation, small_training
from tests.support.waiting import until

from local_stack.stack import Stack
from upcycle.api.registry.v1.service_pb2 import GetModelRequest, ListCheckpointsRequest
from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED, Run, RunSpec
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerRequest, GetLedgerResponse
from upcycle.platform import Platform
from upcycle.rpc import RemoteRefused
from upcycle.run_client import follow_run, submit_run

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]
RUN_LIMIT_S = 240.0


async def finished(platform: Platform, spec: RunSpec) -> Run:
    """Submit and follow to the end."""
    run = await submit_run(platform, spec)
    return await follow_run(platform, run.run_id, timeout_s=RUN_LIMIT_S)


async def balanced(platform: Platform, run_id: str, **at_least: int) -> GetLedgerResponse:
    """The run's ledger, once nothing is in flight and so many episodes are in these states: the ledger reads
    what happened a moment after the planner, and between two steps nothing may be in flight."""
    async with asyncio.timeout(60):
        while True:
            ledger = await platform.trajectories.GetLedger(
                GetLedgerRequest(run_id=run_id),
                timeout=30,
                wait_for_ready=True,  # it may have been killed just now
            )
            if ledger.in_flight == 0 and all(ledger.by_state[one] >= at_least[one] for one in at_least):
                return ledger
            await asyncio.sleep(0.2)


def assert_conserved(ledger: GetLedgerResponse) -> None:
    """Promises 1 and 2."""
    assert ledger.requested == ledger.settled > 0
    assert sum(ledger.by_state.values()) == ledger.settled
    assert ledger.trained_twice == 0
    assert ledger.conflicts == 0


async def test_an_evaluation_settles_every_episode(platform: Platform) -> None:
    run = await finished(platform, evaluation())
    assert run.state == RUN_STATE_COMPLETED, run.failure
    ledger = await balanced(platform, run.run_id, evaluated=120)
    assert_conserved(ledger)
    assert ledger.by_state["evaluated"] == 120
    answer = await platform.tasksets.GetRun(
        GetRunRequest(run_id=run.run_id, include_results=True), timeout=10
    )
    assert len({result.task_slug for result in answer.results}) == 120


async def test_training_publishes_versions_and_judges_its_checkpoints(platform: Platform) -> None:
    run = await finished(platform, small_training(steps=4))
    assert run.state == RUN_STATE_COMPLETED, run.failure
    ledger = await balanced(platform, run.run_id, trained=4 * 2)
    assert_conserved(ledger)
    listed = await platform.registry.ListCheckpoints(ListCheckpointsRequest(model=MODEL), timeout=10)
    assert listed.checkpoints[0].version == 0
    own = [checkpoint for checkpoint in listed.checkpoints if checkpoint.run_id == run.run_id]
    assert [(checkpoint.step, checkpoint.version) for checkpoint in own] == [(4, run.policy_version)]


async def test_the_gateway_serves_head_and_refuses_a_wrong_key(stack: Stack, platform: Platform) -> None:
    where = addresses(stack)
    head = await platform.registry.GetModel(GetModelRequest(model=MODEL), timeout=10)
    async with AsyncOpenAI(base_url=where.gateway_url, api_key=where.gateway_key()) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=4
        )
    assert raw.headers["x-upcycle-digest"] == head.head.digest
    assert int(raw.headers["x-upcycle-version"]) == head.model.head_version
    async with AsyncOpenAI(base_url=where.gateway_url, api_key="up_wrong_key", max_retries=0) as stranger:
        with pytest.raises(AuthenticationError):
            await stranger.models.list()


@pytest.mark.parametrize(
    "victims",
    [
        ("reward_grader", "nats", "trajectory_store", "s3"),
        # test_evaluations_train.py kills these three in one run.
        *[
            pytest.param((name,), marks=pytest.mark.study)
            for name in ("grpo_trainer", "rollout_sampler", "scenario_runner")
        ],
    ],
    ids="-".join,
)
async def test_a_run_survives_kill_9(stack: Stack, platform: Platform, victims: tuple[str, ...]) -> None:
    """One step at least between a death and the next."""
    run = await submit_run(platform, small_training(steps=2 + len(victims), gate=False))
    for step, victim in enumerate(victims, 1):

        async def has_stepped(step: int = step) -> bool:
            now = await platform.tasksets.GetRun(GetRunRequest(run_id=run.run_id), timeout=10)
            return now.run.step >= step

        await until(has_stepped, f"step {step}", timeout_s=RUN_LIMIT_S)
        await stack.kill(victim)
        await stack.wait_ready(victim, timeout_s=180)
    done = await follow_run(platform, run.run_id, timeout_s=RUN_LIMIT_S)
    assert done.state == RUN_STATE_COMPLETED, done.failure
    assert_conserved(await balanced(platform, run.run_id))


async def test_held_out_tasks_are_refused_for_training(platform: Platform) -> None:
    spec = small_training(steps=1)
    spec.taskset = HELD_OUT_TASKSET
    with pytest.raises(RemoteRefused, match="is held out: it never trains"):
        await submit_run(platform, spec)
