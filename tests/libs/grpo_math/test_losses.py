"""Token losses against the recorded oracle, against central differences, and at their edges."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.libs.grpo_math.samples import random_tokens, tokens_of

from grpo_math import losses
from grpo_math.losses import TokenLoss
from grpo_math.objective import LOSSES, build_loss
from grpo_math.tokens import TrainedTokens

ORACLE = json.loads((Path(__file__).parents[2] / "parity" / "data" / "token_oracle.json").read_text())

OURS: dict[str, TokenLoss] = {
    "importance_sampling": losses.ImportanceSampling(),
    "ppo(.2,.2)": losses.Ppo(clip_high=0.2),
    "ppo(.2,.28,dual3)": losses.Ppo(dual_clip=3.0),
    "ppo(.2,.2,delta4)": losses.Ppo(clip_high=0.2, ratio_cap=4.0),
    "cispo(cap5)": losses.Cispo(),
    "cispo(tinker 0..4)": losses.Cispo(cap_low=0.0, cap_high=4.0),
    "dro(beta.05)": losses.Dro(),
    "sapo": losses.Sapo(),
    "dppo_kl": losses.Dppo(),
    "ipo(.3)": losses.Ipo(),
    "decoupled(mask5)": losses.Decoupled(),
    "decoupled(TIS clamp2)": losses.Decoupled(weight_cap=2.0, clamp_weight=True),
    "cross_entropy": losses.CrossEntropy(),
}


@pytest.mark.parametrize("row", ORACLE, ids=lambda row: f"{row['loss']}-r{row['ratio']}-A{row['A']}")
def test_value_and_gradient_equal_the_oracle(row: dict[str, Any]) -> None:
    lp = torch.tensor([math.log(row["p_behaviour"] * row["ratio"])], dtype=torch.float64, requires_grad=True)
    sampler = math.log(row["p_behaviour"])
    advantage = 1.0 if row["loss"] == "cross_entropy" else row["A"]
    tokens = tokens_of(
        lp,
        sampler=[sampler],
        proximal=[sampler + math.log(row["prox_over_behaviour"])],
        advantages=[advantage],
    )
    value = OURS[row["loss"]](tokens).sum()
    value.backward()  # type: ignore[no-untyped-call]
    assert lp.grad is not None
    assert abs(float(value.detach()) - row["value"]) < 1e-12
    assert abs(float(lp.grad) - row["dlogp"]) < 1e-12


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"vespo", "cispo", "cross_entropy"}))
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.1, 1.35, 1.5, 4.9, 8.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_autograd_equals_central_differences(name: str, ratio: float, advantage: float) -> None:
    loss = build_loss(name)

    def value(lp: float) -> float:
        return float(loss(one(lp, advantage)).sum().detach())

    at, step = math.log(0.1 * ratio), 1e-6
    tokens = one(at, advantage)
    loss(tokens).sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.trainer_logprobs.grad is not None
    numeric = (value(at + step) - value(at - step)) / (2 * step)
    assert abs(float(tokens.trainer_logprobs.grad) - numeric) < 1e-6


def one(lp: float, advantage: float) -> TrainedTokens:
    anchor = math.log(0.1)
    return tokens_of([lp], sampler=[anchor], proximal=[anchor + 0.05], advantages=[advantage])


@pytest.mark.parametrize("name", ["ppo", "importance_sampling", "cispo", "gspo", "sapo", "dppo", "ipo"])
def test_on_policy_every_ratio_loss_has_the_same_gradient(name: str) -> None:
    tokens = random_tokens(1, [4, 2, 5], spread=0.0)
    build_loss(name)(tokens).sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.trainer_logprobs.grad is not None
    assert torch.allclose(tokens.trainer_logprobs.grad, -tokens.advantages, atol=1e-12)


@given(seed=st.integers(0, 1000))
def test_decoupled_with_the_sampler_as_proximal_is_ppo(seed: int) -> None:
    tokens = random_tokens(seed, [3, 4])
    same = TrainedTokens(
        tokens.trainer_logprobs,
        tokens.sampler_logprobs,
        tokens.advantages,
        tokens.row_of_token,
        tokens.num_rows,
        proximal_logprobs=tokens.sampler_logprobs,
    )
    assert torch.equal(losses.Decoupled()(same), losses.Ppo(clip_high=0.2)(same))


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"dppo", "ipo", "dro"}))
def test_zero_advantage_has_exactly_zero_gradient(name: str) -> None:
    tokens = tokens_of([-1.0, -2.0], sampler=[-1.5, -0.2], proximal=[-1.2, -1.9], advantages=[0.0, 0.0])
    build_loss(name)(tokens).sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.trainer_logprobs.grad is not None
    assert tokens.trainer_logprobs.grad.abs().max() == 0.0


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("sampler", [math.nan, -math.inf, -800.0, 0.0])
def test_hostile_sampler_logprobs_never_reach_a_gradient_as_nan(name: str, sampler: float) -> None:
    tokens = tokens_of([-1.0, -700.0], sampler=[sampler, -1.0], proximal=[-1.0, -1.0], advantages=[-1.0, 1.0])
    values = build_loss(name)(tokens)
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.trainer_logprobs.grad is not None
    assert torch.isfinite(values).all()
    assert torch.isfinite(tokens.trainer_logprobs.grad).all()


@pytest.mark.parametrize("name", ["ppo", "cispo", "sapo", "importance_sampling"])
def test_an_unknown_sampler_logprob_counts_as_ratio_one(name: str) -> None:
    tokens = tokens_of([-1.0], sampler=[math.nan], advantages=[0.7])
    build_loss(name)(tokens).sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.trainer_logprobs.grad is not None
    assert float(tokens.trainer_logprobs.grad) == pytest.approx(-0.7)


def test_a_bad_token_that_exploded_keeps_its_restoring_gradient_unless_dual_clip_is_asked_for() -> None:
    for dual_clip, expected in ((0.0, 8.0), (3.0, 0.0)):
        tokens = tokens_of([math.log(0.8)], sampler=[math.log(0.1)], advantages=[-1.0])
        losses.Ppo(dual_clip=dual_clip)(tokens).sum().backward()  # type: ignore[no-untyped-call]
        assert tokens.trainer_logprobs.grad is not None
        assert float(tokens.trainer_logprobs.grad) == pytest.approx(expected)


def test_gspo_uses_one_ratio_per_row() -> None:
    tokens = tokens_of([-1.0, -2.0, -3.0], sampler=[-1.1, -2.3, -3.0], rows=[0, 0, 1])
    first = math.exp((0.1 + 0.3) / 2)
    values = losses.Gspo(clip_low=0.9, clip_high=9.0)(tokens)
    assert values.tolist() == pytest.approx([-first, -first, -1.0])


@given(rows=st.lists(st.integers(1, 5), min_size=1, max_size=5), seed=st.integers(0, 100))
def test_row_losses_do_not_depend_on_the_order_of_rows(rows: list[int], seed: int) -> None:
    tokens = random_tokens(seed, rows)
    backwards = torch.arange(sum(rows)).flip(0)
    flipped = TrainedTokens(
        tokens.trainer_logprobs[backwards],
        tokens.sampler_logprobs[backwards],
        tokens.advantages[backwards],
        (tokens.num_rows - 1 - tokens.row_of_token)[backwards],
        tokens.num_rows,
    )
    for name in ("gspo", "vespo"):
        straight, turned = build_loss(name)(tokens), build_loss(name)(flipped)
        assert torch.allclose(straight, turned.flip(0), atol=1e-12)
