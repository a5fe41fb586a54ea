"""Another trainer goes on with the runs of one that is gone, and what the first still does when it wakes up
has no effect."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
from tests.services.grpo_trainer.crashes import trained_once
from tests.services.grpo_trainer.runs.test_old_states import at_step
from tests.services.grpo_trainer.runs.test_reopening import FAILED, LAST, STEPS, Sleeper, new_world
from tests.support.waiting import until

from blob_store import MemoryBlobStore
from grpo_trainer.adapters.step_folders import markers
from grpo_trainer.domain.errors import LineageTaken
from grpo_trainer.domain.states import SessionPhase, SessionState
from grpo_trainer.holding import HeldModel
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.stores import BlobStates
from identities.objects import policy_manifest, training_run
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.errors import Unavailable

LINE = training_run(MODEL, RUN)


async def whole(folder: Path) -> World:
    """The same run, with one trainer from its first step to its last."""
    world = await new_world(folder)
    await Episodes(world).groups(range(STEPS))
    async with Trainer(world):
        await world.published(LAST)
    return world


def written(world: World) -> Mapping[str, bytes]:
    """Everything durable but the leases themselves."""
    return {key: data for key, data in world.store.objects.items() if "/trainers/" not in key}


class Zombie:
    """Notes what the stores answered to a trainer that woke up."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def change(self, deps: RunDeps) -> RunDeps:
        for name in ("commit", "claim", "note_attempt"):
            vars(deps.states)[name] = self._noted(name, getattr(deps.states, name))
        return deps

    def _noted(self, name: str, inner: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await inner(*args, **kwargs)
            except LineageTaken:
                self.refused.append(name)
                raise

        return call


async def test_a_zombie_that_finishes_its_step_writes_nothing(tmp_path: Path) -> None:
    """It lost its lease during step 1, wakes up, and stores the step before it looks at its lease."""
    world, sleeper, zombie = await new_world(tmp_path / "one"), Sleeper(1), Zombie()
    async with Trainer(world, change=lambda deps: zombie.change(sleeper.change(deps))) as left:
        await Episodes(world).groups(range(STEPS))
        await sleeper.asleep.wait()
        left.freeze()
        async with Trainer(world) as right:
            await world.published(LAST)
            await until(lambda: right.sessions.get(RUN).phase is SessionPhase.FINISHED)
            before, said = written(world), list(world.recorder.order)
            vars(left.sessions.holding)["surely"] = left.sessions.holding.held  # it checks nothing itself
            sleeper.wake.set()
            await until(lambda: bool(zombie.refused))
            after = written(world)
            assert {key for key in after if after[key] != before.get(key)} <= _unnamed(after)
            assert world.recorder.order == said
            left.thaw()
            await until(lambda: not left.sessions.all)
    assert FAILED not in world.recorder.events
    trained_once(world)
    await assert_same_bits(await whole(tmp_path / "whole"), world, versions=STEPS)


def _unnamed(objects: Mapping[str, bytes]) -> set[str]:
    """Tensors below step 1 that no marker names, and the count of attempts: no reader follows either."""
    return {key for key in objects if f"{LINE}/step-00000001/" in key and not markers([key])} | {
        f"{LINE}/attempts.json"
    }


async def test_a_lease_lost_during_the_upload_of_a_policy_costs_no_step(tmp_path: Path) -> None:
    """The state of step 2 is durable, its policy is on the way: the other trainer announces it."""
    world, reached, go_on = await new_world(tmp_path / "one"), asyncio.Event(), asyncio.Event()

    def change(deps: RunDeps) -> RunDeps:
        upload = deps.policies.upload

        async def slow(state: SessionState, directory: Path) -> Any:
            if state.step == 2:
                reached.set()
                await go_on.wait()
            return await upload(state, directory)

        vars(deps.policies)["upload"] = slow
        return deps

    async with Trainer(world, change=change) as left:
        await Episodes(world).groups(range(STEPS))
        await reached.wait()
        left.freeze()
        async with Trainer(world):
            await world.published(LAST)
            go_on.set()
            with pytest.raises(Unavailable, match="has to renew first"):
                left.sessions.holding.surely(MODEL)
            left.thaw()
            await until(lambda: not left.sessions.all)
    trained_once(world)
    assert [one.step for one in world.recorder.of(events.StepCompleted)] == [1, 2, 3, 4]
    await assert_same_bits(await whole(tmp_path / "whole"), world, versions=STEPS)


async def test_a_version_is_not_stored_by_a_trainer_that_may_have_lost_its_model(tmp_path: Path) -> None:
    """It freezes in the upload; another run may have this version number by the time that it wakes up."""
    world, said, frozen = await new_world(tmp_path), list[str](), list[Trainer]()

    def change(deps: RunDeps) -> RunDeps:
        upload = deps.policies.upload

        async def cut_off(state: SessionState, directory: Path) -> Any:
            if said or state.step != 1:
                return await upload(state, directory)
            frozen[0].freeze()
            await until(lambda: _is_unsure(deps))
            try:
                policy = await upload(state, directory)
            except Unavailable as error:
                said.append(str(error))
                raise
            said.append("stored")
            return policy

        vars(deps.policies)["upload"] = cut_off
        return deps

    async with Trainer(world, change=change) as trainer:
        frozen.append(trainer)
        await Episodes(world).groups(range(STEPS))
        await until(lambda: bool(said))
        assert "has to renew first" in said[0]
        assert policy_manifest(MODEL, 1) not in world.store.objects
        trainer.thaw()
        await world.published(LAST)
    trained_once(world)


def _is_unsure(deps: RunDeps) -> bool:
    try:
        deps.holding.surely(MODEL)
    except Unavailable:
        return True
    return False


async def test_two_trainers_share_two_models_and_one_goes_on_with_both(tmp_path: Path) -> None:
    world = await new_world(tmp_path)
    await world.publish_base(model="other", seed=4)
    world.stream.append(
        submission(run_id="run-2", model="other", steps=2, prompts_per_step=1, max_staleness=9)
    )
    async with Trainer(world) as left:
        async with Trainer(world) as right:
            trainers = (left, right)
            await until(lambda: all(len(one.sessions.all) == 1 for one in trainers))
            await Episodes(world, run_id="run-2").groups([0])
            await Episodes(world).groups([0])
            await world.published("step.completed/run-2/1")
            await world.published(f"step.completed/{RUN}/1")
        await Episodes(world, run_id="run-2").groups([1])
        await Episodes(world).groups(range(1, STEPS))
        await world.published("step.completed/run-2/2")
        await world.published(LAST)
        assert len(left.sessions.all) == 2
    trained_once(world)


async def test_a_run_that_its_holder_closed_leaves_the_tables_of_the_others(tmp_path: Path) -> None:
    world = await new_world(tmp_path)
    await Episodes(world).groups(range(STEPS))
    async with Trainer(world) as left:
        await world.published(LAST)
        async with Trainer(world) as right:
            await until(lambda: len(right.sessions.elsewhere) == 1)
            await until(lambda: right.sessions.holder_of(RUN) is not None)
            world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL))
            await until(lambda: not right.sessions.elsewhere)
            assert not left.sessions.elsewhere
            assert not right.sessions.all


async def test_a_start_reads_no_marker_of_a_run_that_is_over() -> None:
    store = MemoryBlobStore()
    for number in range(5):
        folder = training_run(MODEL, f"run-{number}")
        await store.put(f"{folder}/step-00000001/state.json", b"not readable")
        await store.put(f"{folder}/closed.json", b"{}")
    await store.put(f"{training_run(MODEL, 'run-open')}/step-00000001/state.json", b"not readable")
    assert await BlobStates(store).open_runs() == [(MODEL, "run-open")]


async def test_claims_of_a_line_only_grow_and_the_one_that_was_there_before_writes_no_marker() -> None:
    store = MemoryBlobStore()
    first, second = BlobStates(store), BlobStates(store)
    assert await first.claim(LINE, token=1, by="a") is None
    await first.commit(at_step(0), None)
    taken = await second.claim(LINE, token=2, by="b")
    assert taken is not None
    with pytest.raises(LineageTaken, match=r"step-00000001/state\.json"):
        await first.commit(at_step(1), None)
    with pytest.raises(LineageTaken, match="belongs to b, token 2"):
        await first.claim(LINE, token=1, by="a")
    with pytest.raises(LineageTaken):
        await first.record_stop(at_step(0), _held(1))
    await second.commit(at_step(1), None)
    assert sorted(markers(store.objects), key=str) == [
        f"{LINE}/step-00000000/state-1.json",
        f"{LINE}/step-00000000/state.json",
        f"{LINE}/step-00000001/state-1.json",
        f"{LINE}/step-00000001/state.json",
    ]
    found = await BlobStates(store).find_run(MODEL, RUN)
    assert isinstance(found, SessionState)
    assert found.step == 1


def _held(token: int) -> Any:
    return HeldModel(MODEL, token, "a")


async def test_a_batch_that_two_living_trainers_lost_to_each_other_is_no_kill(tmp_path: Path) -> None:
    """Each was frozen or cut off in it once, and neither process ended: the third start is no third kill."""
    world, first, second = await new_world(tmp_path), Sleeper(1), Sleeper(1)
    await Episodes(world).groups(range(STEPS))
    async with Trainer(world, change=first.change) as left:
        await first.asleep.wait()
        left.freeze()
        async with Trainer(world, change=second.change) as right:
            await second.asleep.wait()
            right.freeze()
            left.thaw()
            await until(lambda: LAST in world.recorder.events or FAILED in world.recorder.events)
            right.thaw()
    assert FAILED not in world.recorder.events
    trained_once(world)


async def test_an_empty_marker_says_nothing_and_its_number_is_not_used_again() -> None:
    """A store may keep one whose writer was killed between the head and the body of its request."""
    store = MemoryBlobStore()
    first, second, torn = BlobStates(store), BlobStates(store), f"{LINE}/step-00000001/state.json"
    await first.claim(LINE, token=1, by="a")
    await first.commit(at_step(0), None)
    await store.put(torn, b"")
    taken = await second.claim(LINE, token=2, by="b")
    assert taken is not None
    assert taken.step == 0
    await second.commit(at_step(1), None)
    found = await BlobStates(store).find_run(MODEL, RUN)
    assert isinstance(found, SessionState)
    assert found.step == 1
    assert await store.read(torn) == b""
