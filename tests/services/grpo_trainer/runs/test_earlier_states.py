"""A run, and a model in interactive training, whose newest state an earlier release wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.services.grpo_trainer.bench import (
    MIXED,
    MODEL,
    RUN,
    Episodes,
    Trainer,
    World,
    assert_same_bits,
    submission,
)
from tests.services.grpo_trainer.interactive.trainers import batch, trainer_on
from tests.services.grpo_trainer.learners import same
from tests.support.pickled_states import write_pickled
from tests.support.waiting import until

from blob_store import MemoryBlobStore
from grpo_trainer.domain.errors import OldState
from grpo_trainer.runs.stores import BlobStates
from identities import objects
from training_states.converting import convert_all, old_states

Writing = Callable[[], AbstractContextManager[object]]
SECOND = f"policy.published/default/{MODEL}/2"


@pytest.fixture
def earlier(monkeypatch: pytest.MonkeyPatch) -> Writing:
    """Inside, trainers write states as those of 0.3.0 did."""

    @contextmanager
    def writing() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr("grpo_trainer.learner.snapshots.write_tensors", write_pickled)
            yield

    return writing


async def after_one_step(folder: Path, *, checkpoint_every: int = 1) -> World:
    world = World(folder)
    await world.publish_base()
    world.stream.append(submission(steps=9, prompts_per_step=1, checkpoint_every_steps=checkpoint_every))
    await Episodes(world).group(0, MIXED)
    async with Trainer(world):
        await world.published(f"policy.published/default/{MODEL}/1")
    await Episodes(world).group(1, MIXED, version=1)
    return world


async def first_step(world: World) -> None:
    await world.publish_base()
    async with trainer_on(world) as trainer:
        await trainer.forward_backward("a", batch(), group_size=4)
        await trainer.optim_step("b")


async def converted(store: MemoryBlobStore) -> None:
    _, found = await old_states(store)
    assert found
    assert await convert_all(store, found) == []
    assert (await old_states(store))[1] == []


async def test_a_run_waits_for_the_command_and_goes_on_with_the_same_bits(
    tmp_path: Path, earlier: Writing
) -> None:
    whole = await after_one_step(tmp_path / "whole")
    with earlier():
        world = await after_one_step(tmp_path / "earlier")
    async with Trainer(world) as trainer:
        await until(lambda: bool(trainer.sessions.all and trainer.sessions.get(RUN).waiting_for))
        waits_for = trainer.sessions.get(RUN).waiting_for
        assert waits_for is not None
        assert "no trainer opens them" in waits_for
        assert "upcycle states convert --apply" in waits_for
        assert SECOND not in world.recorder.events
        assert not any(event.startswith("session.failed") for event in world.recorder.events)
        await converted(world.store)
        await world.published(SECOND)
    async with Trainer(whole):
        await whole.published(SECOND)
    await assert_same_bits(whole, world, versions=2)


async def test_a_converted_state_is_of_its_marker_and_no_other(tmp_path: Path, earlier: Writing) -> None:
    """The state that a marker names was replaced since: its tensors are not those that were converted."""
    with earlier():
        world = await after_one_step(tmp_path)
    await converted(world.store)
    (marker,) = [key for key in world.store.objects if key.endswith("step-00000001/state.json")]
    world.store.objects[marker] += b" "
    world.recorder.events[f"policy.published/default/{MODEL}/1"].ClearField("training_state")  # of 0.3.0
    async with Trainer(world):
        failed = await world.published(f"session.failed/{RUN}")
    assert failed.kind == "broken_artifact"
    assert f"is no conversion of {marker}" in failed.detail


async def test_a_call_of_interactive_training_is_refused_at_once_and_works_when_it_is_converted(
    tmp_path: Path, earlier: Writing
) -> None:
    whole, world = World(tmp_path / "whole"), World(tmp_path / "earlier")
    with earlier():
        await first_step(world)
    await first_step(whole)
    async with trainer_on(world) as trainer:
        with pytest.raises(OldState, match="upcycle states convert --apply"):
            await trainer.forward_backward("c", batch(), group_size=4)
        await converted(world.store)
        await trainer.forward_backward("c", batch(), group_size=4)
        await trainer.optim_step("d")
        went_on = await trainer.weights(2)
    async with trainer_on(whole) as trainer:
        await trainer.forward_backward("c", batch(), group_size=4)
        await trainer.optim_step("d")
        assert same(went_on, await trainer.weights(2))


async def test_what_was_converted_stays_with_a_state_that_is_kept(tmp_path: Path, earlier: Writing) -> None:
    """A trainer that removes old states must not leave a marker without what can be read of it."""
    with earlier():
        world = await after_one_step(tmp_path)
    await converted(world.store)
    before = {key for key in world.store.objects if "step-00000001/" in key}
    assert any(map(objects.parse_converted_state, before))
    async with Trainer(world):
        await world.published(SECOND)
    assert before <= world.store.objects.keys()


async def test_what_was_converted_goes_with_a_state_that_is_old(tmp_path: Path, earlier: Writing) -> None:
    """Each state is as large as the model and its optimizer, twice once it was converted."""
    with earlier():
        world = await after_one_step(tmp_path, checkpoint_every=5)
    await converted(world.store)
    async with Trainer(world):
        await world.published(SECOND)
    assert any(map(objects.parse_converted_state, world.store.objects))
    await BlobStates(world.store).prune(RUN, MODEL, newest=1)
    assert [key for key in world.store.objects if "step-00000001/" in key] == []
    assert any(objects.parse_step_marker(key) for key in world.store.objects)
