"""The KL divergence from the session's reference policy, in an interactive pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.trainers import InteractiveTrainer, inline, passing, trainer_on

from grpo_trainer.interactive.inputs import Lora, TrainingInput
from grpo_trainer.learner.prepared import Adam, DatumValues

COEFFICIENT = 5.0
KL = {"kl_coefficient": COEFFICIENT}


def batch() -> list[TrainingInput]:
    return [inline(seed, float(seed % 2)) for seed in range(4)]


async def scored(trainer: InteractiveTrainer, name: str, lora: Lora) -> Sequence[DatumValues]:
    """The batch under the weights of now."""
    asked = passing(batch(), group_size=4, lora=lora)
    _, _, data = await trainer.sessions.once(MODEL, name, b"", lambda one: one.forward(asked))
    return data


async def penalty(trainer: InteractiveTrainer, name: str, lora: Lora) -> float:
    """What the divergence adds to the loss of a batch."""
    plain = await trainer.forward_backward(f"{name}/plain", batch(), group_size=4, lora=lora)
    bound = await trainer.forward_backward(f"{name}/bound", batch(), group_size=4, lora=lora, config=KL)
    return bound.metrics["loss"] - plain.metrics["loss"]


def mean_k3(reference: Sequence[DatumValues], policy: Sequence[DatumValues]) -> float:
    """exp(d) - d - 1 with d = reference - policy, over the trained tokens."""
    values = [
        math.exp(ref - now) - (ref - now) - 1
        for one, two in zip(reference, policy, strict=True)
        for ref, now, mask in zip(one.logprobs, two.logprobs, one.mask, strict=True)
        if mask
    ]
    return sum(values) / len(values)


@pytest.mark.parametrize("lora", [Lora(), Lora(rank=2)])
async def test_the_kl_reference_is_the_checkpoint_at_which_the_session_was_opened(
    world: World, lora: Lora
) -> None:
    async with trainer_on(world) as trainer:
        began = await scored(trainer, "s0", lora)
        assert await penalty(trainer, "p0", lora) == pytest.approx(0.0, abs=1e-6)
        await trainer.optim_step("o1", Adam(3e-2))
        expected = COEFFICIENT * mean_k3(began, await scored(trainer, "s1", lora))
        assert expected > 1e-3
        assert await penalty(trainer, "p1", lora) == pytest.approx(expected, rel=1e-3)
        registry = trainer.registry
    async with trainer_on(world, registry=registry) as trainer:
        assert await penalty(trainer, "p2", lora) == pytest.approx(expected, rel=1e-3)


async def test_the_kl_penalty_moves_the_policy_towards_the_reference(world: World) -> None:
    async with trainer_on(world) as trainer:
        began = await scored(trainer, "s0", Lora())
        await trainer.forward_backward("f1", batch(), group_size=4)
        await trainer.optim_step("o1", Adam(1e-2))
        away = mean_k3(began, await scored(trainer, "s1", Lora()))
        for number in range(3):
            strong = {"kl_coefficient": 1e4}
            await trainer.forward_backward(f"g{number}", batch(), group_size=4, config=strong)
            await trainer.optim_step(f"p{number}", Adam(2e-3))
        assert mean_k3(began, await scored(trainer, "s2", Lora())) < 0.7 * away


async def test_setting_head_resets_the_kl_reference(world: World) -> None:
    async with trainer_on(world) as trainer:
        await trainer.forward_backward("f1", batch(), group_size=4)
        await trainer.optim_step("o1", Adam(1e-2))
        await trainer.forward_backward("f2", batch(), group_size=4)
        await trainer.optim_step("o2", Adam(1e-2))
        assert await penalty(trainer, "p2", Lora()) > 1e-3
        await trainer.sessions.once(MODEL, "o3", b"", lambda one: one.close())
        await trainer.registry.set_head(MODEL, 0)
        assert await penalty(trainer, "p3", Lora()) == pytest.approx(0.0, abs=1e-6)
