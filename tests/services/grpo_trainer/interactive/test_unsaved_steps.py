"""Optimizer steps that are not saved: what they publish, what a later step saves of them, and what a restart
says about those that are lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.trainers import batch, passing, trainer_on
from tests.services.grpo_trainer.learners import distance

from grpo_trainer.domain.errors import Diverged, HeadMoved, InvalidInput, LostGradients, LostSteps, ModelBusy
from grpo_trainer.interactive.inputs import Lora, StoredInput
from grpo_trainer.interactive.state import Persist
from grpo_trainer.learner.prepared import Adam
from policy_files import load

HOUR_S = 3600.0


async def take(trainer: Any, name: str, persist: Persist = Persist.CHECKPOINT, **how: Any) -> Any:
    """A pass and a step."""
    await trainer.forward_backward(f"f{name}", batch(), group_size=4)
    return await trainer.optim_step(f"o{name}", persist=persist, **how)


async def test_steps_between_checkpoints_train_the_same_and_are_saved_with_the_next(world: World) -> None:
    other = World(world.folder / "other")
    await other.publish_base()
    async with trainer_on(other) as trainer:
        for step in "123":
            await take(trainer, step)
        expected = await trainer.weights(3)
    async with trainer_on(world) as trainer:
        one, two = await take(trainer, "1", Persist.NONE), await take(trainer, "2", Persist.NONE)
        assert world.heads[MODEL].version == 0
        assert list(world.recorder.events) == []
        assert await trainer.deps.states.unsaved(MODEL) == 2
        three = await take(trainer, "3")
        assert await trainer.deps.states.unsaved(MODEL) is None
        assert distance(expected, await trainer.weights(1)) < 1e-7
    assert [(d.step, d.version, d.checkpoint_id, d.state_path, d.is_head) for d in (one, two)] == [
        (1, 0, "", "", False),
        (2, 0, "", "", False),
    ]
    assert (three.step, three.version, three.is_head) == (3, 1, True)
    saved = world.recorder.events[f"checkpoint.saved/default/{three.checkpoint_id}"]
    assert saved.step == 3  # type: ignore[attr-defined]


async def test_weights_are_published_and_are_no_checkpoint(world: World) -> None:
    async with trainer_on(world) as trainer:
        done = await take(trainer, "1", Persist.WEIGHTS)
        forward = await trainer.sessions.once(MODEL, "f", b"", lambda one: one.forward(passing(batch())))
        again = await take(trainer, "2", Persist.WEIGHTS)
        none = await take(trainer, "3", Persist.NONE)
        assert distance(await trainer.weights(1), await trainer.weights(2)) > 1e-6
        assert (
            await load(world.store, MODEL, 1)
        ).checkpoint_id == ""  # else retention would keep it for good
        saved = await take(trainer, "4")
    assert (done.version, done.checkpoint_id, done.is_head) == (1, "", False)
    assert done.sampler_path == f"default/policies/{MODEL}/v00000001/manifest.json"
    assert forward[1] == 1
    assert [again.version, none.version, saved.version] == [2, 2, 3]
    published = [name for name in world.recorder.events if name.startswith("policy.published")]
    assert published == [f"policy.published/default/{MODEL}/{version}" for version in (1, 2, 3)]
    checkpoints = [name for name in world.recorder.events if name.startswith("checkpoint.saved")]
    assert checkpoints == [f"checkpoint.saved/default/{saved.checkpoint_id}"]


@pytest.mark.parametrize("persist", [Persist.NONE, Persist.WEIGHTS])
async def test_a_restart_says_once_that_steps_are_lost_and_goes_on_from_the_last_saved(
    world: World, persist: Persist
) -> None:
    async with trainer_on(world) as trainer:
        registry = trainer.registry
        await take(trainer, "1")
        await take(trainer, "2", persist)
        await take(trainer, "3", persist)
    async with trainer_on(world, registry=registry) as trainer:
        lost = r"steps 2 to 3 had persist=weights or none .* step 1 \(v1\) was saved"
        with pytest.raises(LostSteps, match=lost):
            await trainer.forward_backward("f4", batch(), group_size=4)
        with pytest.raises(LostSteps, match=lost):  # its answer may not have arrived
            await trainer.forward_backward("f4", batch(), group_size=4)
        done = await take(trainer, "5")
        assert done.step == 2
        first = await trainer.weights(1)
        assert distance(first, await trainer.weights(done.version)) > 1e-6
    async with trainer_on(world, registry=registry) as trainer:
        assert (await take(trainer, "6")).step == 3


async def test_a_process_that_dies_after_saying_so_says_it_again(world: World) -> None:
    async with trainer_on(world) as trainer:
        registry = trainer.registry
        await take(trainer, "1", Persist.NONE)
    for _ in range(2):
        async with trainer_on(world, registry=registry) as trainer:
            with pytest.raises(LostSteps, match=r"step 1 had persist=weights or none .* no step was saved"):
                await trainer.optim_step("x", gradients=("f1",))
    async with trainer_on(world, registry=registry) as trainer:
        with pytest.raises(LostSteps):
            await trainer.optim_step("x", gradients=("f1",))
        with pytest.raises(LostGradients):
            await trainer.optim_step("y", gradients=("f1",))
        assert (await take(trainer, "2")).version == 1


async def test_a_note_older_than_the_newest_state_is_no_loss(world: World) -> None:
    """The process died between the state of a step and the removal of the note."""
    async with trainer_on(world) as trainer:
        registry = trainer.registry
        await take(trainer, "1", Persist.NONE)
        await take(trainer, "2")
        await trainer.deps.states.note_unsaved(MODEL, 1)
    async with trainer_on(world, registry=registry) as trainer:
        assert (await take(trainer, "3")).step == 3
        assert await trainer.deps.states.unsaved(MODEL) is None


async def test_a_run_on_the_model_takes_unsaved_steps_with_it_and_the_next_call_says_so(world: World) -> None:
    async with trainer_on(world) as trainer:
        await take(trainer, "1", Persist.NONE)
        trainer.leases.queue_run(MODEL, "run-1")
        with pytest.raises(ModelBusy):
            await trainer.optim_step("x")
        trainer.leases.end_run(MODEL, "run-1")
        with pytest.raises(LostSteps, match="step 1"):
            await trainer.forward_backward("f2", batch())


async def test_a_head_that_was_set_elsewhere_drops_them_and_says_so(world: World) -> None:
    async with trainer_on(world) as trainer:
        await take(trainer, "1")
        await take(trainer, "2", Persist.NONE)
        await trainer.forward_backward("lost", batch())
        await trainer.registry.set_head(MODEL, 0)
        with pytest.raises(HeadMoved):
            await trainer.optim_step("x")
        with pytest.raises(LostSteps, match="step 2"):
            await trainer.optim_step("y")
        assert (await take(trainer, "3")).step == 2


async def test_unsaved_steps_are_not_closed_for_room_and_not_kept_for_ever(world: World) -> None:
    await world.publish_base(model="other", seed=1)
    now = [0.0]
    async with trainer_on(world, max_open=1, clock=lambda: now[0]) as trainer:
        await take(trainer, "1", Persist.NONE)
        await trainer.forward_backward("a", batch(), model="other")
        assert (await take(trainer, "2", Persist.NONE)).step == 2
        now[0] = HOUR_S
        await trainer.sessions.drop_old_gradients()
        with pytest.raises(LostSteps, match="steps 1 to 2"):
            await take(trainer, "3")


async def test_other_parameters_wait_for_a_checkpoint(world: World) -> None:
    async with trainer_on(world) as trainer:
        await take(trainer, "1", Persist.NONE)
        with pytest.raises(InvalidInput, match=r"unsaved steps of all weights .* persist=checkpoint"):
            await trainer.forward_backward("f2", batch(), lora=Lora(rank=2))
        assert (await take(trainer, "3")).step == 2


async def test_an_update_that_diverges_is_no_step(world: World) -> None:
    async with trainer_on(world) as trainer:
        registry = trainer.registry
        await trainer.forward_backward("f1", batch(), group_size=4)
        _break_gradients(trainer)
        with pytest.raises(Diverged):
            await trainer.optim_step("o1", persist=Persist.NONE)
        assert await trainer.deps.states.unsaved(MODEL) is None
    async with trainer_on(world, registry=registry) as trainer:
        assert (await take(trainer, "2", Persist.NONE)).step == 1


def _break_gradients(trainer: Any) -> None:
    sums = trainer.sessions._sessions[MODEL]._learner._gradients
    sums._token_sums = [None if one is None else one * float("nan") for one in sums._token_sums]


async def test_trajectories_of_unsaved_steps_are_named_by_the_checkpoint_that_saves_them(
    world: World,
) -> None:
    async with trainer_on(world) as trainer:
        for step, persist in enumerate((Persist.NONE, Persist.WEIGHTS, Persist.CHECKPOINT), start=1):
            group = f"run-1-g{step}"
            names = [trainer.library.add(f"{step}-{at}", float(at), group=group) for at in range(2)]
            inputs = [StoredInput(name) for name in names]
            await trainer.forward_backward(f"f{step}", inputs, group_size=2)
            done = await trainer.optim_step(f"o{step}", Adam(1e-3), persist=persist)
        saved = world.recorder.events[f"checkpoint.saved/default/{done.checkpoint_id}"]
        newest = await trainer.deps.states.newest(MODEL)
    assert newest is not None
    assert newest.sources == {"run-1": 3}
    assert newest.session.last_step is not None
    assert len(newest.session.last_step.trajectory_ids) == 6
    assert saved is not None
