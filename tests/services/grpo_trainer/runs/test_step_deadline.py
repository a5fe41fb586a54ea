"""A step that never returns, as on a GPU that hangs: the process leaves, and another trainer goes on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import aiohttp
import pytest
from tests.services.grpo_trainer.bench import World
from tests.services.grpo_trainer.processes import (
    SLOW_TRAINER,
    STEPS,
    Process,
    assert_all_trained_once,
    of_group,
    outside,
    publish,
    run_of_steps,
    slow,
    wait_for,
)
from tests.support.waiting import until

from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread
from grpo_trainer.preemption import EXIT_LEFT_BY_FORCE
from grpo_trainer.settings import GrpoTrainerSettings
from grpo_trainer.step_deadline import StepDeadline
from service_kit.groups import S3Settings


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """A learner's thread with a deadline of an hour, on a clock that a test moves."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.left: list[str] = []
        self.goes_on = threading.Event()
        self.began = threading.Event()
        self.deadline = StepDeadline(3600, leave_s=8, leave=self.left.append, monotonic=self.clock)

    def hangs(self) -> None:
        """What the learner computes."""
        self.began.set()
        assert self.goes_on.wait(60)


async def test_work_that_never_ends_is_said_before_the_process_leaves() -> None:
    watched = Watched()
    thread = LearnerThread(LearnerOptions(num_threads=1), computing=watched.deadline.computing)
    await watched.deadline.start()
    working = asyncio.create_task(thread.run(watched.hangs))
    await until(watched.began.is_set)
    watched.clock.now_s = 3599
    assert watched.deadline.ready() is None
    watched.clock.now_s = 3605
    why = str(watched.deadline.ready())
    assert why.startswith("the learner has computed for 3605 s without an end, more than GRPO_TRAINER_STEP")
    assert watched.left == [], "others are told first"
    watched.clock.now_s = 3608
    await until(lambda: watched.left)
    assert "GRPO_TRAINER_STEP_DEADLINE_S (3600)" in watched.left[0]
    watched.goes_on.set()
    await working
    thread.close()


async def test_work_that_ends_gives_the_next_its_whole_time() -> None:
    """Also where several wait for the thread: what is queued does not compute."""
    watched = Watched()
    thread = LearnerThread(LearnerOptions(num_threads=1), computing=watched.deadline.computing)
    first = asyncio.create_task(thread.run(watched.hangs))
    await until(watched.began.is_set)
    watched.clock.now_s = 3000
    second_began = threading.Event()
    second_ends = threading.Event()

    def second() -> None:
        second_began.set()
        assert second_ends.wait(60)

    waiting = asyncio.create_task(thread.run(second))
    watched.goes_on.set()
    await first
    await until(second_began.is_set)
    watched.clock.now_s = 6599
    assert watched.deadline.ready() is None
    watched.clock.now_s = 6601
    assert watched.deadline.ready() is not None
    second_ends.set()
    await waiting
    assert watched.deadline.ready() is None
    thread.close()


def test_a_deadline_below_that_of_ranks_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="GRPO_TRAINER_STEP_DEADLINE_S 600 must be more than GRPO_TRAINER_R"):
        GrpoTrainerSettings(ranks=2, step_deadline_s=600, rank_deadline_s=600)
    assert GrpoTrainerSettings(ranks=1, step_deadline_s=600, rank_deadline_s=600).step_deadline_s == 600


async def reasons(port: str) -> str:
    """What /readyz of that process answers; empty where it is gone."""
    try:
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/readyz") as reply:
            return await reply.text()
    except aiohttp.ClientError:
        return ""


@pytest.mark.study
@pytest.mark.timeout(300)
async def test_another_trainer_goes_on_where_a_step_never_returns(
    tmp_path: Path, s3_settings: S3Settings
) -> None:
    """Two real processes. The first one's steps take an hour, and its lease is renewed all the time."""
    world = World(tmp_path / "world")
    await run_of_steps(world)
    async with outside(world, tmp_path, s3_settings) as around:
        hangs = slow(around.environment(tmp_path / "hangs"), 3600, GRPO_TRAINER_STEP_DEADLINE_S="5")
        works = around.environment(tmp_path / "works")
        async with (
            Process(hangs, tmp_path / "hangs.log", module=SLOW_TRAINER) as one,
            Process(works, tmp_path / "works.log") as two,
        ):
            await one.start()
            for index in range(STEPS):
                await publish(world, around.bus, of_group(index))
            port = hangs["GRPO_TRAINER_HTTP_PORT"]

            async def says() -> bool:
                return "GRPO_TRAINER_STEP_DEADLINE_S (5)" in await reasons(port)

            await until(says, "a trainer that says that its step is late", timeout_s=60)
            await two.start()
            assert await one.ended(timeout_s=60) == EXIT_LEFT_BY_FORCE
            facts = await wait_for(around.bus, STEPS)
    assert_all_trained_once(facts)
