"""Random bytes and messages at every rpc of the planner and the environments."""

import asyncio

import grpc
from tests.services.scenario_runner.conftest import Runner
from tests.support.fuzzing import check_every_rpc
from tests.support.waiting import until


async def test_no_random_request_is_answered_with_a_bug_and_nothing_is_left(runner: Runner) -> None:
    before = len(asyncio.all_tasks())
    seen = await check_every_rpc(runner.address)
    assert seen[grpc.StatusCode.INVALID_ARGUMENT]
    await until(lambda: len(asyncio.all_tasks()) <= before + 2, "the tasks of the calls to end")
