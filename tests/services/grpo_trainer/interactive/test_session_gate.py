"""What an interactive session continues when the gate, a person or another trainer acts beside it."""

from __future__ import annotations

import pytest
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.trainers import InteractiveTrainer, batch, trainer_on

from grpo_trainer.domain.errors import HeadMoved, ModelBusy
from identities.entities import checkpoint_id


async def step_while_the_gate_judges(trainer: InteractiveTrainer, number: int) -> None:
    """A step of a model whose head the gate moves to v1 while the third is taken."""
    trainer.registry.has_gate = True
    if number == 3:
        await trainer.registry.set_head(MODEL, 1, by_gate=True)
    await trainer.forward_backward(f"f{number}", batch())
    done = await trainer.optim_step(f"o{number}")
    assert (done.version, done.is_head) == (number, False)


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_the_gate_promotes_does_not_undo_later_steps(world: World, *, restarts: bool) -> None:
    async with trainer_on(world) as trainer:
        for number in (1, 2) if restarts else (1, 2, 3):
            await step_while_the_gate_judges(trainer, number)
    if restarts:
        async with trainer_on(world, registry=trainer.registry) as another:
            await step_while_the_gate_judges(another, 3)
    assert world.heads[MODEL].version == 1
    saved = world.recorder.events["checkpoint.saved/default/ckpt-tiny-v00000003"]
    assert saved.parent_checkpoint_id == checkpoint_id(MODEL, 2)  # type: ignore[attr-defined]


async def test_training_follows_a_newer_version_that_the_gate_promoted(world: World) -> None:
    async with trainer_on(world) as trainer:
        trainer.registry.has_gate = True
        for step in (1, 2):
            await trainer.forward_backward(f"f{step}", batch())
            await trainer.optim_step(f"o{step}")
        await trainer.registry.set_head(MODEL, 1)
        await trainer.forward_backward("f3", batch())  # goes on from v1, where a person put head
        await trainer.registry.set_head(MODEL, 2, by_gate=True)
        with pytest.raises(HeadMoved):
            await trainer.optim_step("o3")


async def test_training_does_not_go_on_from_a_head_that_was_rolled_back(world: World) -> None:
    """The session took no step from it: there is none that it would undo."""
    async with trainer_on(world) as another:
        await another.forward_backward("f1", batch())
        await another.optim_step("o1")
    async with trainer_on(world, registry=another.registry) as trainer:
        trainer.registry.has_gate = True
        await world.publish_base(version=2, seed=2)
        await trainer.registry.set_head(MODEL, 2, by_gate=True)
        await trainer.forward_backward("f2", batch())
        await trainer.registry.set_head(MODEL, 0, by_gate=True)
        with pytest.raises(HeadMoved):
            await trainer.optim_step("o2")


async def test_a_step_of_another_trainer_is_continued_though_head_did_not_move(world: World) -> None:
    """A run takes the model from one trainer, and another one trains it after the run."""
    async with trainer_on(world) as one, trainer_on(world, registry=one.registry) as other:
        one.registry.has_gate = True
        await one.forward_backward("f1", batch())
        await one.optim_step("o1")
        one.leases.queue_run(MODEL, "run-1")
        with pytest.raises(ModelBusy):
            await one.forward_backward("f2", batch())
        one.leases.end_run(MODEL, "run-1")
        await other.forward_backward("f2", batch())
        await other.optim_step("o2")
        await one.forward_backward("f3", batch())
        await one.optim_step("o3")
    saved = world.recorder.events["checkpoint.saved/default/ckpt-tiny-v00000003"]
    assert saved.parent_checkpoint_id == checkpoint_id(MODEL, 2)  # type: ignore[attr-defined]


async def test_a_head_that_a_person_set_is_followed_though_the_gate_moved_it_again(world: World) -> None:
    async with trainer_on(world) as trainer:
        trainer.registry.has_gate = True
        for step in (1, 2, 3):
            await trainer.forward_backward(f"f{step}", batch())
            await trainer.optim_step(f"o{step}")
        await trainer.registry.set_head(MODEL, 1)
        await trainer.registry.set_head(MODEL, 2, by_gate=True)
        await trainer.forward_backward("f4", batch())
        await trainer.optim_step("o4")
    saved = world.recorder.events["checkpoint.saved/default/ckpt-tiny-v00000004"]
    assert saved.parent_checkpoint_id == checkpoint_id(MODEL, 2)  # type: ignore[attr-defined]
