"""A run that ends early: no step follows, the newest version is judged, everything held is settled, and a
crash anywhere in between changes none of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.services.grpo_trainer.bench import MIXED, MODEL, RUN, Episodes, Trainer, World, refused, submission
from tests.services.grpo_trainer.crashes import Recording, outcomes, trained_once, wired
from tests.support.waiting import until

from grpo_trainer import views
from grpo_trainer.domain.states import SessionPhase
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.api.training.v1 import training_pb2 as training

STEPS = 5


def stopping() -> taskset_events.RunStopping:
    return taskset_events.RunStopping(run_id=RUN, model=MODEL, reason="enough")


def over() -> taskset_events.RunFinished:
    return taskset_events.RunFinished(run_id=RUN, model=MODEL)


def group_id(index: int) -> str:
    return f"{RUN}-g{index:05d}"


async def two_steps_and_leftovers(world: World) -> None:
    """Two steps of two groups; then one complete group and half a group, and run.stopping."""
    world.stream.append(submission(steps=STEPS, checkpoint_every_steps=STEPS, max_staleness=4))
    episodes = Episodes(world)
    await episodes.groups(range(4))
    async with Trainer(world) as trainer:
        await world.published(f"policy.published/default/{MODEL}/2")
        await durable(trainer, 2)
    await episodes.group(4, MIXED)
    for member in (0, 1):
        world.stream.append(await episodes.fact(5, member, 1.0))
    world.stream.append(stopping())
    world.stream.append(await episodes.fact(5, 2, 0.0))  # graded after the cutoff: it never trains


async def durable(trainer: Trainer, step: int) -> None:
    def is_durable() -> bool:
        state = trainer.sessions.get(RUN).state
        return state is not None and state.step >= step

    await until(is_durable, f"step {step} to be durable")


async def closed(world: World) -> None:
    await until(lambda: f"default/training/{MODEL}/{RUN}/closed.json" in world.store.objects, timeout_s=60)


async def test_a_stopped_run_asks_for_its_newest_version_to_be_judged_and_settles_what_it_holds(
    world: World,
) -> None:
    await two_steps_and_leftovers(world)
    async with Trainer(world) as trainer:
        half = await world.settled(group_id(5))
        whole = await world.settled(group_id(4))
        assert trainer.sessions.get(RUN).phase in (SessionPhase.PUBLISHING, SessionPhase.FINISHED)
        assert views.find(trainer.sessions, RUN).stopping
        world.stream.append(over())
        await closed(world)
    assert (half.outcome, half.reason, len(half.episode_ids)) == ("excluded", "run_over", 2)
    assert (whole.outcome, whole.reason, len(whole.episode_ids)) == ("excluded", "run_over", 4)
    assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1, 2]
    (saved,) = world.recorder.of(events.CheckpointSaved)
    assert (saved.version, saved.step, saved.is_final) == (2, 2, True)
    assert world.recorder.order.index(
        f"checkpoint.saved/default/{saved.checkpoint_id}"
    ) < world.recorder.order.index(f"group.settled/{group_id(4)}")
    async with Trainer(world) as trainer:  # a closed run is past: nothing is published about it again
        await refused(world, "run-after")
        assert (await views.stored(trainer.sessions, RUN)).state == training.SESSION_STATE_FINISHED


async def test_a_stop_before_the_first_step_saves_no_checkpoint(world: World) -> None:
    world.stream.append(submission(steps=STEPS))
    await Episodes(world).group(0, MIXED)
    world.stream.append(stopping())
    async with Trainer(world):
        assert (await world.settled(group_id(0))).reason == "run_over"
    assert not world.recorder.of(events.CheckpointSaved)
    assert not world.recorder.of(events.StepCompleted)


async def test_a_version_that_was_already_saved_is_not_saved_again(world: World) -> None:
    world.stream.append(submission(steps=STEPS, checkpoint_every_steps=1))
    await Episodes(world).groups(range(3))
    async with Trainer(world) as trainer:
        await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000001")
        await durable(trainer, 1)
        world.stream.append(stopping())
        world.stream.append(over())
        await closed(world)
    (saved,) = world.recorder.of(events.CheckpointSaved)
    assert (saved.step, saved.is_final) == (1, False)


async def one_step_and_the_end(world: World, state: taskset_pb2.RunState.ValueType) -> None:
    """The stream lost run.stopping: the planner ended the run, and nothing else says so."""
    world.stream.append(submission(steps=STEPS, checkpoint_every_steps=STEPS))
    await Episodes(world).groups(range(2))
    async with Trainer(world) as trainer:
        await world.published(f"policy.published/default/{MODEL}/1")
        await durable(trainer, 1)
        world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL, state=state))
        await closed(world)


async def test_a_completed_run_saves_its_newest_version_though_its_run_stopping_was_lost(
    world: World,
) -> None:
    await one_step_and_the_end(world, taskset_pb2.RUN_STATE_COMPLETED)
    assert [(one.version, one.is_final) for one in world.recorder.of(events.CheckpointSaved)] == [(1, True)]


async def test_a_cancelled_run_saves_nothing_though_its_run_stopping_was_lost(world: World) -> None:
    await one_step_and_the_end(world, taskset_pb2.RUN_STATE_CANCELLED)
    assert not world.recorder.of(events.CheckpointSaved)


async def test_a_stop_during_a_step_lets_the_step_finish(world: World) -> None:
    world.stream.append(submission(steps=STEPS, checkpoint_every_steps=STEPS))
    episodes = Episodes(world)
    async with Trainer(world) as trainer:
        await episodes.groups(range(2))
        async with asyncio.timeout(60):
            while not any(session.phase is SessionPhase.STEPPING for session in trainer.sessions.all):
                await asyncio.sleep(0)
        world.stream.append(stopping())
        saved = await world.published(f"checkpoint.saved/default/ckpt-{MODEL}-v00000001")
    assert saved.is_final
    assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1]


@pytest.mark.timeout(300)
async def test_a_kill_before_any_write_of_the_end_changes_nothing(tmp_path: Path) -> None:
    whole = World(tmp_path / "whole")
    await whole.publish_base()
    await two_steps_and_leftovers(whole)
    whole.stream.append(over())
    recording = Recording(whole)
    async with Trainer(whole, change=wired(recording)):
        await closed(whole)
    expected = outcomes(whole)
    assert {reason for _, reason, _, _ in expected.values()} == {"", "run_over"}
    assert len(recording.left_behind) > 6
    for number, world in enumerate(recording.left_behind, 1):
        async with Trainer(world):
            await closed(world)
        assert outcomes(world) == expected, f"killed before write {number}"
        trained_once(world)
        assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1, 2]
        assert [one.is_final for one in world.recorder.of(events.CheckpointSaved)] == [True]
