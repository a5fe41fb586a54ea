"""Two trainers take the steps of one run: the slower goes on from what the faster made durable, and one that
wakes up late does no harm."""

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
    refused,
    submission,
)
from tests.services.grpo_trainer.crashes import trained_once
from tests.support.waiting import until

from grpo_trainer import views
from grpo_trainer.domain.errors import LineageTaken
from grpo_trainer.domain.following import Scales
from grpo_trainer.domain.states import SessionPhase, SessionState
from grpo_trainer.learner.protocol import BatchGroup, StepNumbers
from grpo_trainer.runs.deps import RunDeps
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as events

STEPS = 4
LAST = f"checkpoint.saved/default/ckpt-{MODEL}-v{STEPS:08d}"
FAILED = f"session.failed/{RUN}"


async def new_world(folder: Path) -> World:
    world = World(folder)
    await world.publish_base()
    world.stream.append(
        submission(steps=STEPS, prompts_per_step=1, max_staleness=9, checkpoint_every_steps=9)
    )
    return world


class Sleeper:
    """A trainer that falls asleep in the middle of its step number `step`, and wakes up when told."""

    def __init__(self, step: int) -> None:
        self.asleep, self.wake = asyncio.Event(), asyncio.Event()
        self._left = step

    def change(self, deps: RunDeps) -> RunDeps:
        new_learner = deps.new_learner

        def sleepy() -> Any:
            learner = new_learner()
            step = learner.step

            async def slow(groups: Sequence[BatchGroup], scales: Scales) -> StepNumbers:
                numbers = await step(groups, scales)
                self._left -= 1
                if self._left == 0:
                    self.asleep.set()
                    await self.wake.wait()
                return numbers

            vars(learner)["step"] = slow
            return learner

        return dataclasses.replace(deps, new_learner=sleepy)


def step_of(trainer: Trainer) -> int:
    state = trainer.sessions.get(RUN).state
    return 0 if state is None else state.step


@pytest.mark.parametrize("ahead", [2, 3])
async def test_a_trainer_that_was_overtaken_goes_on_from_the_others_state(tmp_path: Path, ahead: int) -> None:
    """ahead: step that the other one takes in the meantime; states before it are removed."""
    world, whole, sleeper = await new_world(tmp_path / "one"), await new_world(tmp_path / "whole"), Sleeper(1)
    await Episodes(whole).groups(range(STEPS))
    async with Trainer(whole):
        await whole.published(LAST)
    async with Trainer(world, change=sleeper.change) as left:
        await Episodes(world).groups(range(ahead))
        await sleeper.asleep.wait()
        left.freeze()
        async with Trainer(world) as right:
            await world.published(f"policy.published/default/{MODEL}/{ahead}")
            await until(lambda: step_of(right) == ahead)
        sleeper.wake.set()
        left.thaw()
        await until(lambda: bool(left.sessions.all) and step_of(left) == ahead)
        await Episodes(world).groups(range(ahead, STEPS))  # live facts, after those that were recalled
        await world.published(LAST)
        steps = [record.step for record in left.sessions.get(RUN).history]
        assert steps == list(range(ahead, STEPS + 1))  # its own step 1 is in no state
    assert FAILED not in world.recorder.events
    trained_once(world)
    assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1, 2, 3, 4]
    await assert_same_bits(whole, world, versions=STEPS)


async def test_facts_that_arrive_while_the_session_is_opened_again_are_not_lost(tmp_path: Path) -> None:
    world, sleeper = await new_world(tmp_path), Sleeper(1)
    async with Trainer(world, change=sleeper.change) as left:
        await Episodes(world).group(0, (1.0, 0.0, 0.0, 1.0))
        await sleeper.asleep.wait()
        left.freeze()
        async with Trainer(world):
            await world.published(f"policy.published/default/{MODEL}/1")
        read_again, recalling, go_on = left.sessions.read_again, asyncio.Event(), asyncio.Event()

        async def slow(*args: Any) -> Any:
            found = await read_again(*args)
            recalling.set()
            await go_on.wait()
            return found

        left.sessions.read_again = slow
        sleeper.wake.set()
        left.thaw()
        await recalling.wait()
        await Episodes(world).groups(range(1, STEPS))
        # The reader has them; the session that is gone would have lost them.
        await until(lambda: left.sessions.watermark.handled == len(world.stream.facts))
        go_on.set()
        await world.published(LAST)
    trained_once(world)


async def test_after_three_losses_in_a_row_the_run_ends(tmp_path: Path) -> None:
    world, tries = await new_world(tmp_path), 0

    def change(deps: RunDeps) -> RunDeps:
        commit = deps.states.commit

        async def taken(state: SessionState, tensors: Path | None) -> SessionState:
            nonlocal tries
            if state.step == 2:
                tries += 1
                raise LineageTaken("step 2 is already written with another content")
            return await commit(state, tensors)

        vars(deps.states)["commit"] = taken
        return deps

    await Episodes(world).groups(range(STEPS))
    async with Trainer(world, change=change) as trainer:
        fact = await world.published(FAILED)
        assert trainer.sessions.get(RUN).phase is SessionPhase.FAILED
    assert (fact.kind, fact.step, tries) == ("lineage_taken", 1, 4)
    assert world.recorder.order[-1] == FAILED


async def test_two_trainers_side_by_side_train_nothing_twice(tmp_path: Path) -> None:
    world = await new_world(tmp_path)
    async with Trainer(world), Trainer(world):
        for index in range(STEPS):
            await Episodes(world).groups([index])
        await world.published(LAST)
    trained_once(world)
    assert FAILED not in world.recorder.events


@pytest.mark.parametrize("closed", [True, False])
async def test_a_trainer_that_wakes_up_after_the_run_is_over_does_no_harm(
    tmp_path: Path, closed: bool
) -> None:
    """closed: the other one has seen the end of the run, or only the last step."""
    world, sleeper = await new_world(tmp_path), Sleeper(1)
    async with Trainer(world, change=sleeper.change) as left:
        await Episodes(world).groups(range(STEPS))
        await sleeper.asleep.wait()
        left.freeze()
        async with Trainer(world):
            await world.published(LAST)
            if closed:
                world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL))
                await until(lambda: f"default/training/{MODEL}/{RUN}/closed.json" in world.store.objects)
        said = list(world.recorder.order)
        sleeper.wake.set()
        left.thaw()
        if closed:
            await until(lambda: not left.sessions.elsewhere and not left.sessions.all)
        else:
            await until(lambda: bool(left.sessions.all) and step_of(left) == STEPS)
        await refused(world, "run-after")
    assert set(world.recorder.order) == {*said, "session.failed/run-after"}
    assert not [key for key in world.store.objects if key.endswith(f"/{RUN}/failed.json")]
    trained_once(world)


async def test_a_trainer_that_wakes_up_after_the_run_failed_elsewhere_adopts_the_failure(
    tmp_path: Path,
) -> None:
    world, sleeper = await new_world(tmp_path), Sleeper(1)

    def broken(deps: RunDeps) -> RunDeps:
        def new_learner() -> Any:
            learner = deps.new_learner()

            async def step(groups: Sequence[BatchGroup], scales: Scales) -> StepNumbers:
                raise ValueError("a bug")

            vars(learner)["step"] = step
            return learner

        return dataclasses.replace(deps, new_learner=new_learner)

    async with Trainer(world, change=sleeper.change) as left:
        await Episodes(world).groups(range(STEPS))
        await sleeper.asleep.wait()
        left.freeze()
        async with Trainer(world, change=broken):
            fact = await world.published(FAILED)
        marker = f"default/training/{MODEL}/{RUN}/step-00000001/state.json"
        world.store.objects[marker] = b"{}"  # as another trainer may leave it
        sleeper.wake.set()
        left.thaw()
        await until(lambda: RUN in left.sessions.failures)
        assert views.find(left.sessions, RUN).failure == fact.detail
    assert not world.recorder.of(events.StepCompleted)
