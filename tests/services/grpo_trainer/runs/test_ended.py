"""Each episode counts in the success of one step: also one that ends while a step is computed, and over a
restart."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.services.grpo_trainer.bench import RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.runs.test_assembly import graded
from tests.support.waiting import until

from grpo_trainer.domain.ended import EndedEpisodes
from grpo_trainer.domain.following import Scales
from grpo_trainer.domain.trajectories import GradedTrajectory
from grpo_trainer.learner.protocol import BatchGroup, StepNumbers
from grpo_trainer.runs.deps import RunDeps
from upcycle.api.training.v1 import events_pb2 as events

HALF, MOST = (1.0, 0.0, 0.0, 1.0), (1.0, 1.0, 1.0, 0.0)


def add(ended: EndedEpisodes, *rewards: float, first: int) -> None:
    for at, reward in enumerate(rewards):
        ended.add(graded(0, at, reward, first + at))


def test_what_ends_while_a_step_is_computed_counts_in_the_one_after_it() -> None:
    ended = EndedEpisodes({})
    add(ended, *HALF, first=1)
    assert ended.begin_step() == 0.5
    add(ended, 1.0, first=5)
    ended.step_taken()
    assert ended.begin_step() == 1.0
    ended.step_taken()
    assert ended.begin_step() is None


def test_a_step_that_is_not_applied_counts_nothing() -> None:
    ended = EndedEpisodes({})
    add(ended, 1.0, first=1)
    ended.begin_step()
    add(ended, 0.0, first=2)
    assert ended.begin_step() == 0.5


def test_a_restart_goes_on_with_what_no_step_counted_and_takes_no_replayed_fact_for_a_new_one() -> None:
    ended = EndedEpisodes({})
    add(ended, *HALF, first=1)
    ended.begin_step()
    add(ended, 1.0, first=5)
    after = EndedEpisodes(ended.remembered())
    add(after, *HALF, 1.0, first=1)
    assert after.success == 1.0
    after.begin_step()
    assert EndedEpisodes(after.remembered()).success is None
    add(after, 0.0, first=6)
    assert after.success == 0.5


class Door:
    """Holds the learner before its steps, and the bodies of what trains."""

    def __init__(self) -> None:
        self.bodies, self.steps = asyncio.Event(), asyncio.Semaphore(0)
        self.num_begun = 0

    def change(self, deps: RunDeps) -> RunDeps:
        tokens, new_learner = deps.bodies.tokens, deps.new_learner

        async def held(member: GradedTrajectory) -> Any:
            await self.bodies.wait()
            return await tokens(member)

        def slow() -> Any:
            learner = new_learner()
            step = learner.step

            async def waiting(groups: Sequence[BatchGroup], scales: Scales) -> StepNumbers:
                self.num_begun += 1
                await self.steps.acquire()
                return await step(groups, scales)

            vars(learner)["step"] = waiting
            return learner

        vars(deps.bodies)["tokens"] = held
        return dataclasses.replace(deps, new_learner=slow)


async def new_world(folder: Path) -> World:
    world = World(folder)
    await world.publish_base()
    world.stream.append(submission(steps=2, prompts_per_step=1, lr_success_decay=0.5))
    return world


def has_read(trainer: Trainer, num_groups: int) -> bool:
    """Whether so many whole groups are with the run."""
    known = [one.spec.run_id for one in trainer.sessions.all]
    return RUN in known and len(trainer.sessions.get(RUN).buffer.cutter.waiting) == num_groups


def successes(world: World) -> list[float | None]:
    """`success_all` of the steps."""
    completed = [dict(one.metrics.values) for one in world.recorder.of(events.StepCompleted)]
    return [one.get("success_all") for one in completed]


async def test_a_trainer_that_is_always_busy_counts_every_episode(tmp_path: Path) -> None:
    """The second group ends while the first one trains, and is there when the next step begins."""
    world, door = await new_world(tmp_path), Door()
    door.bodies.set()
    async with Trainer(world, change=door.change) as trainer:
        await Episodes(world).group(0, HALF)
        await until(lambda: door.num_begun == 1)
        await Episodes(world).group(1, MOST)
        await until(lambda: has_read(trainer, 2))
        door.steps.release()
        door.steps.release()
        await world.published(f"step.completed/{RUN}/2")
    assert successes(world) == [0.5, 0.75]


async def test_a_kill_between_two_steps_makes_no_episode_count_twice(tmp_path: Path) -> None:
    """Both groups end before the first step, which counts them; the second group trains after the kill."""
    world, door = await new_world(tmp_path), Door()
    await Episodes(world).group(0, HALF)
    await Episodes(world).group(1, MOST)
    async with Trainer(world, change=door.change) as trainer:
        await until(lambda: has_read(trainer, 2))
        door.bodies.set()
        door.steps.release()
        await world.published(f"step.completed/{RUN}/1")
        await until(lambda: door.num_begun == 2)
        for task in trainer.sessions._tasks.values():
            task.cancel()
    async with Trainer(world):
        await world.published(f"step.completed/{RUN}/2")
    assert successes(world) == [0.625, None]
    first, second = (dict(one.metrics.values) for one in world.recorder.of(events.StepCompleted))
    assert second["success_smoothed"] == first["success_smoothed"] == 0.625
