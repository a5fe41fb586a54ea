"""The next step computes while the last state is stored; no event about either is published before it is
durable.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.services.grpo_trainer.bench import (
    MODEL,
    RUN,
    Episodes,
    Trainer,
    World,
    assert_same_bits,
    submission,
)
from tests.support.waiting import until

from grpo_trainer import views
from grpo_trainer.domain.errors import LineageTaken
from grpo_trainer.domain.following import Scales
from grpo_trainer.domain.states import SessionState
from grpo_trainer.learner.protocol import BatchGroup, StepNumbers
from grpo_trainer.runs.deps import RunDeps
from upcycle.api.training.v1 import events_pb2 as events

STEPS = 4


class Door:
    """In front of the object store: states that are being committed wait while it is shut."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0
        self.most_waiting = 0
        self.steps = 0
        self.committed = 0
        self.committed_at_step: list[int] = []
        self.failure: Exception | None = None

    def change(self, deps: RunDeps) -> RunDeps:
        """Puts the door in front of commits, and counts the steps that were computed."""
        commit, new_learner = deps.states.commit, deps.new_learner

        async def slow(state: SessionState, tensors: Path | None) -> SessionState:
            if state.step:
                self.waiting += 1
                self.most_waiting = max(self.most_waiting, self.waiting)
                await self.open.wait()
                self.waiting -= 1
                if self.failure is not None:
                    raise self.failure
            committed = await commit(state, tensors)
            self.committed = state.step
            return committed

        def counting() -> Any:
            learner = new_learner()
            step = learner.step

            async def counted(groups: Sequence[BatchGroup], scales: Scales) -> StepNumbers:
                self.committed_at_step.append(self.committed)
                numbers = await step(groups, scales)
                self.steps += 1
                return numbers

            vars(learner)["step"] = counted
            return learner

        vars(deps.states)["commit"] = slow
        return dataclasses.replace(deps, new_learner=counting)


async def new_world(folder: Path, **config: Any) -> World:
    world = World(folder)
    await world.publish_base()
    given = {"steps": STEPS, "prompts_per_step": 1, "max_staleness": STEPS, **config}
    world.stream.append(submission(**given))
    await Episodes(world).groups(range(STEPS))
    return world


async def finish(world: World) -> None:
    async with Trainer(world):
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}")


async def test_one_step_runs_ahead_of_the_state_in_flight_and_publishes_nothing(tmp_path: Path) -> None:
    world, door = await new_world(tmp_path), Door()
    async with Trainer(world, change=door.change) as trainer:
        await until(lambda: door.steps == 2)
        assert not world.recorder.order
        assert not [key for key in world.store.objects if "step-00000001/state.json" in key]
        state = trainer.sessions.get(RUN).state
        assert state is not None
        assert state.step == 0
        view = views.find(trainer.sessions, RUN)
        assert (view.groups_publishing, view.groups_ready) == (1, STEPS - 1), "the planner misses none"
        door.open.set()
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}")
    assert door.most_waiting == 1
    steps = [one.step for one in world.recorder.of(events.StepCompleted)]
    versions = [one.version for one in world.recorder.of(events.PolicyPublished)]
    assert steps == versions == [1, 2, 3, 4]
    # The third step began when the first was durable, and so on: one state is in flight at most.
    assert all(done >= step - 2 for step, done in enumerate(door.committed_at_step, 1))


async def test_a_kill_with_one_state_in_flight_and_the_next_step_computed_costs_both_and_no_bit(
    tmp_path: Path,
) -> None:
    whole, world, door = await new_world(tmp_path / "whole"), await new_world(tmp_path / "killed"), Door()
    await finish(whole)
    async with Trainer(world, change=door.change) as trainer:
        await until(lambda: door.steps == 2)
        for task in trainer.sessions._tasks.values():
            task.cancel()
    assert not world.recorder.order
    await finish(world)
    await assert_same_bits(whole, world, versions=STEPS)
    ids = [one for step in world.recorder.of(events.StepCompleted) for one in step.trajectory_ids]
    assert len(ids) == len(set(ids)) == 4 * STEPS


async def test_a_state_that_cannot_be_written_fails_the_run_though_no_batch_is_ready(tmp_path: Path) -> None:
    world, door = await new_world(tmp_path, steps=STEPS + 5), Door()
    door.failure = LineageTaken("another trainer was faster")
    async with Trainer(world, change=door.change) as trainer:
        await until(lambda: door.steps == 2)
        door.open.set()
        await until(lambda: bool(trainer.sessions.get(RUN).failure))
        assert "another trainer was faster" in trainer.sessions.get(RUN).failure
        await world.published(f"session.failed/{RUN}")
    assert world.recorder.order == [f"session.failed/{RUN}"]


async def test_what_a_new_version_finds_stale_is_settled_once_that_version_is_durable(tmp_path: Path) -> None:
    world, door = World(tmp_path), Door()
    await world.publish_base()
    world.stream.append(submission(steps=2, prompts_per_step=1, max_staleness=0))
    await Episodes(world).groups(range(2))
    async with Trainer(world, change=door.change):
        await until(lambda: door.waiting == 1)
        assert not world.recorder.order
        door.open.set()
        stale = await world.settled(f"{RUN}-g00001")
        assert (stale.outcome, stale.reason) == ("excluded", "stale")
    order = world.recorder.order
    settled = order.index(f"group.settled/{RUN}-g00001")
    assert order.index(f"policy.published/default/{MODEL}/1") < settled


async def test_a_stop_waits_for_the_state_in_flight(tmp_path: Path) -> None:
    world, door = await new_world(tmp_path, steps=STEPS + 5), Door()
    async with Trainer(world, change=door.change) as trainer:
        await until(lambda: door.steps == 2)
        stopping = asyncio.create_task(trainer.sessions.stop())
        await until(lambda: trainer.sessions.get(RUN)._leaving)
        assert not stopping.done()
        door.open.set()
        async with asyncio.timeout(60):
            await stopping
    assert [one.step for one in world.recorder.of(events.StepCompleted)][:2] == [1, 2]


@pytest.mark.parametrize("key", ["first", "second"])
async def test_files_of_a_state_are_whole_or_the_run_says_which_is_not(tmp_path: Path, key: str) -> None:
    world = await new_world(tmp_path, steps=STEPS + 5)
    async with Trainer(world):
        await world.published(f"policy.published/default/{MODEL}/{STEPS}")
    files = sorted(
        one for one in world.store.objects if f"step-{STEPS:08d}/" in one and "state.json" not in one
    )
    assert [one.rpartition("/")[2] for one in files] == ["index.json", "tensors.safetensors"]
    del world.store.objects[files[key == "second"]]
    async with Trainer(world) as trainer:
        await until(lambda: bool(trainer.sessions.all and trainer.sessions.get(RUN).failure))
        assert f"tensors of step {STEPS}" in trainer.sessions.get(RUN).failure
