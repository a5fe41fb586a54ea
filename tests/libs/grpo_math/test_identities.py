"""Identities between definitions, over random groups and tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.libs.grpo_math.samples import random_tokens, tokens_of

from grpo_math import advantages as adv
from grpo_math.aggregation import StepTotals
from grpo_math.objective import LOSSES, build_loss, build_objective

group = st.lists(st.floats(-2, 2, allow_nan=False), min_size=2, max_size=8)
RATIOS = [0.5, 1.0, 1.25, 1.5, 5.0, 8.0]


@given(rewards=group, scale=st.floats(0.5, 20))
def test_a_scale_leaves_grpo_alone_up_to_its_epsilon(rewards: list[float], scale: float) -> None:
    table = torch.tensor([rewards], dtype=torch.float64)
    assume(float(table.std()) > 0.05)
    assert torch.allclose(adv.grpo(table), adv.grpo(scale * table), rtol=5e-3)


@given(rewards=group)
def test_rloo_is_dr_grpo_times_g_over_g_minus_one(rewards: list[float]) -> None:
    table, size = torch.tensor([rewards], dtype=torch.float64), len(rewards)
    assert torch.allclose(adv.rloo(table), adv.dr_grpo(table) * size / (size - 1), atol=1e-12)


@given(rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=8))
def test_max_rl_is_dr_grpo_over_the_mean(rewards: list[float]) -> None:
    table = torch.tensor([rewards], dtype=torch.float64)
    mean = float(table.mean())
    expected = adv.dr_grpo(table) / mean if mean else torch.zeros_like(table)
    assert torch.allclose(adv.max_rl(table), expected, atol=1e-12)


@pytest.mark.parametrize("name", sorted(adv.ADVANTAGES))
@given(value=st.floats(0, 1), size=st.integers(2, 8))
def test_rewards_that_tie_in_bfloat16_are_tied(name: str, value: float, size: int) -> None:
    rounded = torch.full((1, size), value, dtype=torch.bfloat16)
    assert adv.advantage_function(name)(rounded.float()).tolist() == [[0.0] * size]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("importance_sampling", lambda r, a: -r * a),
        ("ppo", lambda r, a: 0.0 if (a > 0 and r > 1.28) or (a < 0 and r < 0.8) else -r * a),
        ("cispo", lambda r, a: -min(r, 5.0) * a),
        ("dro", lambda r, a: -a + 0.05 * math.log(r)),
        ("cross_entropy", lambda r, a: -a),
    ],
)
def test_gradients_are_the_ones_of_the_definitions(
    name: str, slope: object, ratio: float, advantage: float
) -> None:
    lp = torch.tensor([math.log(0.1 * ratio)], dtype=torch.float64, requires_grad=True)
    tokens = tokens_of(lp, sampler=[math.log(0.1)], advantages=[advantage])
    (found,) = torch.autograd.grad(build_loss(name)(tokens).sum(), lp)
    assert callable(slope)
    assert float(found) == pytest.approx(slope(ratio, advantage), abs=1e-8)


@given(seed=st.integers(0, 500), rows=st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_gspo_of_rows_of_one_token_is_ppo(seed: int, rows: list[int]) -> None:
    tokens = random_tokens(seed, [1] * len(rows))
    bounds = {"clip_low": 0.2, "clip_high": 0.28}
    assert torch.allclose(build_loss("gspo", bounds)(tokens), build_loss("ppo", bounds)(tokens), atol=1e-12)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_step_of_one_token_is_finite(name: str) -> None:
    tokens = tokens_of([-1e-9], sampler=[-30.0], proximal=[-15.0], advantages=[-1.0], turns=[0])
    loss = build_objective(name)(tokens, StepTotals(1, 1, max_row_tokens=1))
    (gradient,) = torch.autograd.grad(loss, tokens.trainer_logprobs)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
