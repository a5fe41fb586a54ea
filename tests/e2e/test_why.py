"""`upcycle why` on runs that were made to wait: it names the cause."""

import asyncio

import pytest
from tests.platform_recipes import evaluation

from local_stack.stack import Stack
from upcycle.api.taskset.v1.service_pb2 import ExplainRunRequest, ExplainRunResponse
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED
from upcycle.platform import Platform
from upcycle.run_client import follow_run, submit_run

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(240)]


async def explained(platform: Platform, run_id: str, owner: str) -> ExplainRunResponse:
    """The explanation, once it names `owner`."""
    answer = ExplainRunResponse()
    async with asyncio.timeout(60):
        while not any(owner in reason.owner for reason in answer.waiting_for):
            await asyncio.sleep(0.5)
            answer = await platform.tasksets.ExplainRun(ExplainRunRequest(run_id=run_id), timeout=10)
    return answer


@pytest.mark.parametrize(
    ("stopped", "owner"), [("policy_engine_latest", "policy_engine"), ("reward_grader", "reward_grader")]
)
async def test_a_stopped_process_is_named(stack: Stack, platform: Platform, stopped: str, owner: str) -> None:
    await stack.stop(stopped)
    try:
        run = await submit_run(platform, evaluation())
        answer = await explained(platform, run.run_id, owner)
        reason = next(reason for reason in answer.waiting_for if owner in reason.owner)
        assert reason.episodes > 0
        assert reason.remedy
        assert answer.summary
    finally:
        await stack.start(stopped)
    done = await follow_run(platform, run.run_id, timeout_s=180)
    assert done.state == RUN_STATE_COMPLETED, done.failure
