"""Advantages: numbers worked by hand, and every edge of the definitions."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo_math import advantages as adv
from grpo_math.errors import GrpoMathError, UnknownName

DATA = Path(__file__).parents[2] / "parity" / "data"
NAN = math.nan

groups = st.integers(2, 6).flatmap(
    lambda size: st.lists(
        st.lists(st.floats(-5, 5, allow_nan=False), min_size=size, max_size=size), min_size=1, max_size=4
    )
)


def rewards(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def close(found: Tensor, expected: list[list[float]], tolerance: float = 1e-6) -> bool:
    return torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=tolerance, rtol=0)


def test_a_better_than_average_rollout_gets_positive_credit() -> None:
    assert adv.dr_grpo(rewards([1.0, 0.0, 0.0, 1.0])).tolist() == [[0.5, -0.5, -0.5, 0.5]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dr_grpo", [[0.5, -0.5, -0.5, 0.5]]),
        ("grpo", [[0.86587542, -0.86587542, -0.86587542, 0.86587542]]),
        ("rloo", [[0.66666667, -0.66666667, -0.66666667, 0.66666667]]),
        ("max_rl", [[1.0, -1.0, -1.0, 1.0]]),
    ],
)
def test_each_advantage_of_a_binary_group_is_the_hand_worked_one(
    name: str, expected: list[list[float]]
) -> None:
    assert close(adv.advantage_function(name)(rewards([1, 0, 0, 1])), expected)


def test_advantages_of_worked_examples() -> None:
    found = adv.grpo(rewards([0.2, 0.9, 0.4, 0.7]))
    assert close(found, [[-1.125356, 1.125356, -0.482296, 0.482296]])


def test_a_missing_member_leaves_mean_and_spread_and_gets_nothing() -> None:
    assert close(adv.grpo(rewards([1, NAN, 0, 1])), [[0.577250, 0.0, -1.154501, 0.577250]])
    assert close(adv.rloo(rewards([1, NAN, 0])), [[1.0, 0.0, -1.0]])


def test_rloo_is_the_distance_to_the_mean_of_the_others() -> None:
    values = [0.3, 0.9, 0.1]
    expected = [value - (sum(values) - value) / 2 for value in values]
    assert close(adv.rloo(rewards(values)), [expected])


def test_batch_divides_by_the_spread_of_raw_rewards() -> None:
    table = rewards([1, 0, 0, 1], [0, 0, 0, 0], [0.2, 0.9, 0.4, 0.7])
    spread = float(table.std())
    found = adv.batch(table)
    assert close(found[:1], [[0.5 / (spread + 1e-4) * sign for sign in (1, -1, -1, 1)]])
    assert found[1].tolist() == [0.0] * 4


@pytest.mark.parametrize("name", sorted(adv.ADVANTAGES))
@given(value=st.floats(0, 1), size=st.integers(1, 8))
def test_a_tied_group_is_exactly_zero(name: str, value: float, size: int) -> None:
    assert adv.advantage_function(name)(rewards([value] * size)).tolist() == [[0.0] * size]


@pytest.mark.parametrize("name", sorted(adv.ADVANTAGES))
def test_a_single_survivor_is_zero(name: str) -> None:
    assert adv.advantage_function(name)(rewards([1, NAN, NAN])).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("name", sorted(adv.ADVANTAGES))
def test_an_empty_group_is_zero(name: str) -> None:
    assert adv.advantage_function(name)(rewards([NAN, NAN])).tolist() == [[0.0, 0.0]]


@given(table=groups, shift=st.floats(-3, 3))
def test_a_shift_of_all_rewards_changes_nothing(table: list[list[float]], shift: float) -> None:
    base = rewards(*table)
    assert torch.allclose(adv.dr_grpo(base), adv.dr_grpo(base + shift), atol=1e-9)


@given(table=groups, scale=st.floats(0.1, 10))
def test_a_scale_scales_dr_grpo(table: list[list[float]], scale: float) -> None:
    base = rewards(*table)
    assert torch.allclose(scale * adv.dr_grpo(base), adv.dr_grpo(scale * base), atol=1e-8)


@given(table=groups)
def test_credits_of_a_group_sum_to_zero(table: list[list[float]]) -> None:
    for name in ("dr_grpo", "rloo"):
        assert adv.advantage_function(name)(rewards(*table)).sum(dim=1).abs().max() < 1e-9


@given(table=groups)
def test_groups_without_spread_are_the_ones_that_cannot_teach(table: list[list[float]]) -> None:
    credits = adv.advantage_function("dr_grpo")(rewards(*table))
    assert (credits != 0).any(dim=1).tolist() == [len(set(row)) > 1 for row in table]


def test_trl_advantages_are_reproduced() -> None:
    recorded = np.load(DATA / "parity_trl.npz")
    manifest = json.loads((DATA / "parity_trl.json").read_text())
    plain = torch.tensor(recorded["in/rewards"], dtype=torch.float64)
    missing = plain.clone()
    missing[0, 1] = NAN
    for key in manifest["advantages"]:
        scale, which, _ = key.split("/")
        name = {"group": "grpo", "batch": "batch", "none": "dr_grpo"}[scale]
        found = adv.advantage_function(name)(plain if which == "plain" else missing)
        assert np.abs(found.flatten().numpy() - recorded[f"adv/{key}"]).max() < 2e-6, key


def test_refusals_name_the_value_and_the_way_out() -> None:
    with pytest.raises(UnknownName, match="did you mean 'grpo'"):
        adv.advantage_function("grop")
    with pytest.raises(GrpoMathError, match="rewards >= 0"):
        adv.max_rl(rewards([-1, 1]))
    with pytest.raises(GrpoMathError, match="finite"):
        adv.dr_grpo(rewards([math.inf, 1]))
    with pytest.raises(GrpoMathError, match=r"\[P, G\]"):
        adv.dr_grpo(torch.ones(3))


def test_a_group_of_one_is_compared_with_the_mean_of_the_other_groups() -> None:
    """Means 1, 0, 1/2, 3/4. Of the others: (0 + 1/2 + 3/4)/3, (1 + 1/2 + 3/4)/3, (1 + 0 + 3/4)/3."""
    some = rewards([1.0, NAN, NAN, NAN], [0.0, NAN, NAN, NAN], [0.5, NAN, NAN, NAN], [1.0, 0.0, 1.0, 1.0])
    found = adv.with_batch_baseline(some, adv.dr_grpo(some))
    assert found[:3, 0].tolist() == pytest.approx([1 - 5 / 12, -3 / 4, 1 / 2 - 7 / 12])
    assert found[:3, 1:].abs().sum() == 0
    assert torch.equal(found[3], adv.dr_grpo(some)[3]), "a group is compared within itself, as ever"


def test_groups_of_one_alone_have_the_leave_one_out_advantages_of_one_group() -> None:
    alone = rewards([1.0], [0.0], [0.0], [1.0])
    found = adv.with_batch_baseline(alone, adv.dr_grpo(alone))
    assert found.flatten().tolist() == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])
    assert found.flatten().tolist() == pytest.approx(adv.rloo(alone.T).flatten().tolist())


@pytest.mark.parametrize("rows", [[[0.7]], [[0.7]] * 8, [[0.1], [0.1], [NAN]]])
def test_groups_of_one_with_equal_rewards_are_exactly_zero(rows: list[list[float]]) -> None:
    found = rewards(*rows)
    assert adv.with_batch_baseline(found, adv.dr_grpo(found)).tolist() == [[0.0]] * len(rows)


def test_hierarchical_compares_solvers_in_their_group_and_proposals_with_all_of_the_batch() -> None:
    table = rewards([1, 0, NAN], [0.1, 0.1, 0.1], [-0.8, NAN, NAN], [1, 1, 1])
    found = adv.hierarchical(table, torch.tensor([False, True, True, False]))
    assert close(found, [[0.5, -0.5, 0.0], [0.225] * 3, [-0.675, 0.0, 0.0], [0.0] * 3])
    tied = adv.hierarchical(rewards([-0.8, -0.8], [-0.8, -0.8]), torch.tensor([True, True]))
    assert tied.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_hierarchical_without_proposals_is_dr_grpo() -> None:
    table = rewards([1, 0, 0, 1], [0.2, 0.9, 0.4, NAN])
    assert torch.equal(adv.hierarchical(table, torch.tensor([False, False])), adv.dr_grpo(table))


def test_hierarchical_needs_to_know_of_each_group_whether_it_proposes() -> None:
    with pytest.raises(GrpoMathError, match=r"proposes must be \[P\]"):
        adv.hierarchical(rewards([1, 0]), torch.tensor([True, False]))
