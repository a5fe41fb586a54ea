"""A run that completes without its newest step: the version before that step is the run's last one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.crashes import Killed
from tests.services.grpo_trainer.runs.test_cancelled_runs import Gate, settled_instead, until_closed

from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.states import SessionState
from grpo_trainer.runs.deps import RunDeps
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import taskset_pb2 as taskset
from upcycle.api.training.v1 import events_pb2 as events

_VOID_STEP = 2


class Kill:
    """Ends the trainer when it stores the policy of the step that is to be void."""

    reached = asyncio.Event()

    async def passed(self) -> None:
        raise Killed("upload")


def at_second_upload(gate: Gate | Kill) -> Any:
    """The policy of the step waits for the gate; its state is durable by then."""

    def change(deps: RunDeps) -> RunDeps:
        stored = deps.policies.upload

        async def upload(state: SessionState, directory: Path) -> PublishedPolicy:
            if state.step == _VOID_STEP:
                await gate.passed()
            return await stored(state, directory)

        vars(deps.policies)["upload"] = upload
        return deps

    return change


async def training(world: World, **config: int) -> None:
    world.stream.append(submission(**{"steps": 3, "checkpoint_every_steps": 3, **config}))
    for index in range(4):
        await Episodes(world).group(index, MIXED)


def end_without_it(world: World, ending: taskset.RunState.ValueType) -> None:
    """A person stopped the run, and the planner waited for the trainer for long enough."""
    world.stream.append(taskset_events.RunStopping(run_id=RUN, model=MODEL, ending=ending, is_final=True))
    for index in (2, 3):
        fact = settled_instead(index)
        world.recorder.decided_by_another(fact, f"group.settled/{fact.group_id}")
    world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL, state=ending))


def saved(world: World) -> list[tuple[int, int, bool]]:
    return [(one.version, one.step, one.is_final) for one in world.recorder.of(events.CheckpointSaved)]


async def test_the_version_before_a_void_step_becomes_the_last_checkpoint(world: World) -> None:
    gate = Gate()
    await training(world)
    async with Trainer(world, change=at_second_upload(gate)):
        await asyncio.wait_for(gate.reached.wait(), 60)
        end_without_it(world, taskset.RUN_STATE_COMPLETED)
        gate.open.set()
        await until_closed(world)
    assert saved(world) == [(1, 1, True)]
    assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1]
    (checkpoint,) = world.recorder.of(events.CheckpointSaved)
    (policy,) = world.recorder.of(events.PolicyPublished)
    assert checkpoint.digest == policy.digest
    assert checkpoint.training_state.key in world.store.objects  # what the checkpoint names outlasts the run
    folder = f"default/training/{MODEL}/{RUN}/step-00000002/"
    assert not [key for key in world.store.objects if key.startswith(folder)]


async def test_a_trainer_that_starts_on_a_void_step_saves_the_version_before_it(world: World) -> None:
    await training(world)
    async with Trainer(world, change=at_second_upload(Kill())) as trainer:
        assert isinstance(await trainer.death(), Killed)
    end_without_it(world, taskset.RUN_STATE_COMPLETED)
    for _ in range(2):
        async with Trainer(world):
            await until_closed(world)
    assert saved(world) == [(1, 1, True)]


@pytest.mark.parametrize(
    ("ending", "config"),
    [(taskset.RUN_STATE_CANCELLED, {}), (taskset.RUN_STATE_COMPLETED, {"checkpoint_every_steps": 1})],
)
async def test_a_cancelled_run_and_one_that_saved_it_save_nothing_more(
    world: World, ending: taskset.RunState.ValueType, config: dict[str, int]
) -> None:
    gate = Gate()
    await training(world, **config)
    async with Trainer(world, change=at_second_upload(gate)):
        await asyncio.wait_for(gate.reached.wait(), 60)
        before = saved(world)
        end_without_it(world, ending)
        gate.open.set()
        await until_closed(world)
    assert saved(world) == before
    assert len(before) == bool(config)
