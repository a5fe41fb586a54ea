"""Objectives: what fits together, how it adds up, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.libs.grpo_math.samples import random_tokens, tokens_of
from torch import Tensor

from grpo_math.aggregation import AGGREGATIONS, StepTotals, token_weights
from grpo_math.corrections import OffPolicyRowMask, SamplerWeight
from grpo_math.divergence import kl_estimate, mismatch_report, mismatch_sums
from grpo_math.errors import GrpoMathError, UnknownName, UnsoundCombination
from grpo_math.losses import Decoupled, ImportanceSampling, Ppo
from grpo_math.objective import KlPenalty, Objective, build_objective, decision_entropy, entropy_threshold
from grpo_math.tokens import TrainedTokens


def totals_of(tokens: TrainedTokens) -> StepTotals:
    return StepTotals(tokens.trainer_logprobs.shape[0], tokens.num_rows, max_row_tokens=16)


def part(tokens: TrainedTokens, rows: list[int]) -> TrainedTokens:
    """The same tokens, only of these rows."""
    keep = torch.isin(tokens.row_of_token, torch.tensor(rows))
    number = {row: index for index, row in enumerate(rows)}
    values = {
        f.name: value[keep]
        for f in dataclasses.fields(tokens)
        if isinstance(value := getattr(tokens, f.name), Tensor)
    }
    values["row_of_token"] = torch.tensor([number[int(row)] for row in values["row_of_token"]])
    return TrainedTokens(num_rows=len(rows), **values)


def test_weights_of_worked_examples() -> None:
    tokens = tokens_of([-1.0] * 4, rows=[0, 0, 0, 1], turns=[0, 0, 1, 0])
    expected = {
        "token_mean": [1 / 4] * 4,
        "row_mean": [1 / 6, 1 / 6, 1 / 6, 1 / 2],
        "row_sum": [1 / 2] * 4,
        "constant_length": [1 / 32] * 4,
        "sum": [1.0] * 4,
        "turn_mean": [1 / 8, 1 / 8, 1 / 4, 1 / 2],
    }
    assert expected.keys() == AGGREGATIONS.keys()
    for name, weights in expected.items():
        assert token_weights(name, tokens, totals_of(tokens)).tolist() == pytest.approx(weights)


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
@pytest.mark.parametrize("loss", ["ppo", "gspo", "decoupled", "vespo"])
@given(seed=st.integers(0, 50), rows=st.lists(st.integers(1, 6), min_size=2, max_size=6), data=st.data())
def test_the_cut_into_microbatches_changes_nothing(
    aggregation: str, loss: str, seed: int, rows: list[int], data: st.DataObject
) -> None:
    tokens = random_tokens(seed, rows)
    objective = build_objective(loss, aggregation=aggregation)
    totals = totals_of(tokens)
    whole = objective(tokens, totals)
    cut = data.draw(st.integers(1, len(rows) - 1))
    parts = [list(range(cut)), list(range(cut, len(rows)))]
    pieces = torch.stack([objective(part(tokens, which), totals) for which in parts]).sum()
    (gradient,) = torch.autograd.grad(whole, tokens.trainer_logprobs, retain_graph=True)
    (in_pieces,) = torch.autograd.grad(pieces, tokens.trainer_logprobs)
    assert torch.allclose(whole, pieces, rtol=1e-12, atol=1e-14)
    assert torch.allclose(gradient, in_pieces, rtol=1e-12, atol=1e-14)


def test_repeating_every_group_leaves_a_mean_and_doubles_a_sum() -> None:
    once = random_tokens(3, [2, 5])
    values = {
        f.name: torch.cat([value, value])
        for f in dataclasses.fields(once)
        if isinstance(value := getattr(once, f.name), Tensor)
    }
    values["row_of_token"] = torch.cat([once.row_of_token, once.row_of_token + 2])
    twice = TrainedTokens(num_rows=4, **values)
    for aggregation, factor in (("token_mean", 1.0), ("row_mean", 1.0), ("sum", 2.0)):
        objective = build_objective(aggregation=aggregation)
        single, double = objective(once, totals_of(once)), objective(twice, totals_of(twice))
        assert float(double.detach()) == pytest.approx(factor * float(single.detach()))


def test_forking_a_row_does_not_change_a_token_mean_and_does_change_a_row_mean() -> None:
    whole = random_tokens(4, [6, 3])
    fork = dataclasses.replace(whole, row_of_token=torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]), num_rows=3)
    mean, rows = build_objective(), build_objective(aggregation="row_mean")
    assert torch.equal(mean(whole, totals_of(whole)), mean(fork, totals_of(fork)))
    assert not torch.allclose(rows(whole, totals_of(whole)), rows(fork, totals_of(fork)))


def test_a_step_without_tokens_is_refused_and_a_microbatch_without_tokens_is_zero() -> None:
    with pytest.raises(GrpoMathError, match="skip the step"):
        StepTotals(0, 0)
    empty = tokens_of(torch.zeros(0))
    assert float(build_objective()(empty, StepTotals(5, 1)).detach()) == 0.0


@pytest.mark.parametrize("loss", [Ppo(), ImportanceSampling(), Decoupled()])
def test_a_sampler_weight_is_refused_where_the_ratio_already_holds_it(loss: Ppo) -> None:
    with pytest.raises(UnsoundCombination, match="count the sampler twice"):
        Objective(loss, sampler_weight=SamplerWeight())


def test_a_sampler_weight_beside_a_proximal_anchor_is_the_decoupled_loss() -> None:
    tokens = random_tokens(5, [4, 4])
    weighted = Objective(Ppo(0.2, 0.2, anchor="proximal"), sampler_weight=SamplerWeight(high=2.0))
    decoupled = Objective(Decoupled(weight_cap=2.0, clamp_weight=True))
    assert torch.equal(weighted(tokens, totals_of(tokens)), decoupled(tokens, totals_of(tokens)))
    assert weighted.needs_proximal
    assert decoupled.needs_proximal
    assert not Objective(Ppo()).needs_proximal


def test_dropped_tokens_stay_in_the_denominator() -> None:
    tokens = tokens_of([-1.0, -1.0], sampler=[-1.0, -9.0], proximal=[-1.0, -1.0], advantages=[1.0, 1.0])
    objective = Objective(Ppo(anchor="proximal"), sampler_weight=SamplerWeight(action="drop", high=3.0))
    assert float(objective(tokens, totals_of(tokens)).detach()) == pytest.approx(-0.5)


def test_a_row_that_went_too_far_is_masked_only_where_it_was_bad() -> None:
    mask = OffPolicyRowMask(limit=0.1)
    tokens = tokens_of(
        [-2.0, -2.0, -2.0], sampler=[-1.0, -1.0, -2.0], advantages=[-1.0, 1.0, -1.0], rows=[0, 1, 2]
    )
    assert mask(tokens).tolist() == [0.0, 1.0, 1.0]


def test_top_entropy_trains_the_most_uncertain_share() -> None:
    tokens = tokens_of([-1.0] * 10)
    objective = build_objective(parameters={"top_entropy": 0.3})
    assert tokens.entropies is not None
    threshold = entropy_threshold(tokens.entropies, 0.3)
    totals = StepTotals(10, 1, entropy_threshold=threshold)
    assert float(objective(tokens, totals).detach()) == pytest.approx(-0.3)


def test_kl_estimators_of_worked_examples_and_their_gradients() -> None:
    lp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([-1.5], dtype=torch.float64)
    expected = {
        "k1": (0.5, 1.0),
        "k2": (0.125, 0.5),
        "k3": (0.10653066, 0.39346934),
        "k3_plus": (0.10653066, 0.5),
    }
    for kind, (value, slope) in expected.items():
        found = kl_estimate(lp, other, kind)
        (gradient,) = torch.autograd.grad(found.sum(), lp)
        assert float(found.detach()) == pytest.approx(value)
        assert float(gradient) == pytest.approx(slope)


@given(a=st.floats(-5, 0), b=st.floats(-5, 0))
def test_k3_is_never_negative(a: float, b: float) -> None:
    assert float(kl_estimate(torch.tensor([a]), torch.tensor([b]), "k3")) >= -1e-6


def test_mismatch_sums_add_up_over_microbatches() -> None:
    tokens = random_tokens(6, [3, 4, 5])
    whole = mismatch_report(mismatch_sums(tokens, clip_low=0.2, clip_high=0.28))
    halves = [mismatch_sums(part(tokens, rows), clip_low=0.2, clip_high=0.28) for rows in ([0], [1, 2])]
    added = mismatch_report(halves[0] + halves[1])
    assert dataclasses.astuple(whole) == pytest.approx(dataclasses.astuple(added))
    ratio = (tokens.trainer_logprobs - tokens.sampler_logprobs).exp()
    assert whole.mismatch_kl == pytest.approx(float((ratio - 1 - ratio.log()).mean().detach()))
    assert whole.ratio_max == pytest.approx(float(ratio.max().detach()))


def test_on_policy_there_is_no_mismatch() -> None:
    report = mismatch_report(mismatch_sums(random_tokens(7, [8], spread=0.0), clip_low=0.2, clip_high=0.28))
    assert (report.mismatch_kl, report.ratio_max) == (0.0, 1.0)
    assert (report.clip_fraction_low, report.clip_fraction_high) == (0.0, 0.0)
    assert report.effective_sample_fraction == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("loss", "parameters", "said"),
    [
        ("pppo", {}, "did you mean 'ppo'"),
        ("ppo", {"clip_hi": 0.3}, "did you mean 'clip_high'"),
        ("ppo", {"clip_low": 1.5}, "clip_low must be < 1"),
        ("ppo", {"clip_low": -0.1}, "clip_low must be a finite number > 0"),
        ("ppo", {"dual_clip": 0.5}, "dual_clip must be > 1"),
        ("cispo", {"cap_high": 0.2}, "ratio bounds"),
        ("decoupled", {"weight_cap": 0.5}, "1 is the on-policy weight"),
        ("dro", {"beta": 0.0}, "beta must be"),
        ("ppo", {"top_entropy": 0.0}, r"share in \(0, 1\]"),
    ],
)
def test_an_unknown_loss_or_option_and_a_value_out_of_range_are_refused_by_name(
    loss: str, parameters: dict[str, float], said: str
) -> None:
    with pytest.raises(GrpoMathError, match=said):
        build_objective(loss, parameters)


def test_an_unknown_aggregation_or_kl_is_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'token_mean'"):
        build_objective(aggregation="tokenmean")
    with pytest.raises(UnknownName, match="KL estimator 'k4'"):
        KlPenalty(0.1, "k4")


def test_a_missing_input_is_named() -> None:
    tokens = tokens_of([-1.0])
    with pytest.raises(GrpoMathError, match="reference"):
        build_objective(parameters={"kl_coefficient": 0.1})(tokens, totals_of(tokens))
    with pytest.raises(GrpoMathError, match="proximal"):
        build_objective("decoupled")(tokens, totals_of(tokens))


def test_entropy_of_decisions_is_that_of_the_least_certain_fifth() -> None:
    entropies = torch.tensor([0.0, 0.1, 2.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert decision_entropy(entropies) == 1.5
    assert decision_entropy(torch.tensor([0.5, 0.25])) == 0.5, "at least one token"
