"""Inputs of interactive steps that are no numbers: refused by name, and nothing is computed on them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.services.grpo_trainer.bench import World
from tests.services.grpo_trainer.interactive.trainers import inline, trainer_on

from grpo_trainer.domain.errors import InvalidInput, NothingAccumulated
from grpo_trainer.interactive.inputs import InlineInput, RowInput
from grpo_trainer.learner.prepared import Adam

NONE = (math.nan, -math.inf, math.inf, -1e38, 0.5)
ROW = RowInput(
    "row", [1, 2, 3, 4], [0.0, 1.0, 1.0, 1.0], [0.0, -1.0, -1.0, -1.0], [0.0, 1.0, 1.0, 1.0], 1.0, None
)


@pytest.mark.parametrize("value", NONE)
async def test_a_log_probability_that_is_none_is_refused(world: World, value: float) -> None:
    row = replace(ROW, logprobs=[math.nan, -1.0, value, -1.0])
    given = inline(1, 1.0)
    bad = replace(given.samples[1], output_logprobs=[value, -1.0, -1.0, -1.0])
    sampled = replace(given, samples=(given.samples[0], bad))
    async with trainer_on(world) as trainer:
        with pytest.raises(InvalidInput, match=r"row: the log-probability .* from -10000 to 0"):
            await trainer.forward_backward("a", [row])
        with pytest.raises(InvalidInput, match="t1 sample 1: the log-probability"):
            await trainer.forward_backward("b", [sampled])
        with pytest.raises(NothingAccumulated):
            await trainer.optim_step("c")


async def test_what_is_unknown_of_a_token_that_does_not_train_is_no_matter(world: World) -> None:
    async with trainer_on(world) as trainer:
        row = replace(ROW, logprobs=[math.nan, -4.0, -4.0, -4.0])
        await trainer.forward_backward("a", [row])
        assert (await trainer.optim_step("b")).version == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e-45])
async def test_a_temperature_that_is_none_is_refused(world: World, value: float) -> None:
    given: InlineInput = replace(inline(1, 1.0), temperature=value)
    async with trainer_on(world) as trainer:
        for one in (replace(ROW, temperature=value), given):
            with pytest.raises(InvalidInput, match=f"{one.name}: temperature is"):
                await trainer.forward_backward("a", [one])


def test_a_weight_decay_that_would_turn_weights_around_is_refused() -> None:
    Adam(1e-3, weight_decay=1000.0)
    with pytest.raises(InvalidInput, match="is 1e\\+27, it must be <= 1"):
        Adam(1e-3, weight_decay=1e30)
