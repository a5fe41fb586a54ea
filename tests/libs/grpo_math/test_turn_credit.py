"""Credit by turn, and rewards of several parts: worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_math.advantages import dr_grpo, grpo, normalize_then_sum
from grpo_math.errors import GrpoMathError
from grpo_math.turn_credit import credit_by_turn, turn_returns


def test_a_turn_led_to_its_own_reward_and_to_what_came_after() -> None:
    assert turn_returns(1.0, (0.5, 0.0), 2, discount=1.0, weight=1.0) == [1.5, 1.0]
    # Backwards: 0 + 1 = 1; 0.5 * 0.25 + 0.5 * 1; 0.5 * 1 + 0.5 * 0.625.
    assert turn_returns(1.0, (1.0, 0.25, 0.0), 3, discount=0.5, weight=0.5) == [0.8125, 0.625, 1.0]
    assert turn_returns(1.0, (), 2, discount=0.5, weight=1.0) == [0.5, 1.0]
    assert turn_returns(0.0, (0.5, 0.5, 9.0), 2, discount=1.0, weight=1.0) == [1.0, 0.5]
    assert turn_returns(0.25, (1.0, 1.0), 1, discount=1.0, weight=0.0) == [0.25]


def test_turns_are_compared_with_those_of_the_same_index() -> None:
    group = [[3.0, 1.0], [1.0, 2.0], [2.0, 0.0]]
    assert credit_by_turn([group], dr_grpo) == [[[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]]]


def test_a_turn_that_no_other_member_reached_has_the_credit_of_its_trajectory() -> None:
    assert credit_by_turn([[[1.5, 1.0], [0.0]]], dr_grpo) == [[[0.75, 0.75], [-0.75]]]


def test_groups_of_other_sizes_and_lengths_stand_beside_each_other() -> None:
    found = credit_by_turn([[[1.0], [0.0]], [[2.0, 4.0], [0.0, 0.0], [1.0, 2.0]]], dr_grpo)
    assert found == [[[0.5], [-0.5]], [[1.0, 2.0], [-1.0, -2.0], [0.0, 0.0]]]
    assert credit_by_turn([], dr_grpo) == []


def test_it_takes_any_advantage() -> None:
    ((first, second),) = credit_by_turn([[[1.0, 0.0], [0.0, 1.0]]], grpo)
    unit = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert first == pytest.approx([unit, -unit])
    assert second == pytest.approx([-unit, unit])


def test_parts_are_normalised_before_they_are_added() -> None:
    """Success 1, 0 and a format of tiny spread 0.51, 0.5: in the sum of raw rewards the format hardly counts;
    here it counts as much as its weight says."""
    success = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    style = torch.tensor([[0.51, 0.5, 0.51, 0.5]])
    raw = dr_grpo(success + style)
    assert raw[0].tolist() == pytest.approx([0.505, 0.495, -0.495, -0.505])
    found = normalize_then_sum(torch.stack([success, style]), torch.tensor([1.0, 1.0]), epsilon=0.0)
    # z of each is +-sqrt(3)/2; sums are sqrt(3), 0, 0, -sqrt(3), of standard deviation sqrt(2).
    assert found[0].tolist() == pytest.approx([math.sqrt(1.5), 0.0, 0.0, -math.sqrt(1.5)], abs=1e-9)


def test_a_group_that_is_tied_in_every_part_has_no_advantage() -> None:
    parts = torch.tensor([[[1.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]])
    found = normalize_then_sum(parts, torch.tensor([1.0, 3.0]))
    assert found[0].tolist() == [0.0, 0.0]
    assert float(found[1, 0] + found[1, 1]) == pytest.approx(0.0)
    assert found[1, 0] < 0, "the heavier part decides"


def test_a_member_without_a_part_is_left_out_of_it() -> None:
    parts = torch.tensor([[[1.0, 0.0, torch.nan]], [[0.0, 1.0, 1.0]]])
    found = normalize_then_sum(parts, torch.tensor([1.0, 0.0]), epsilon=0.0)
    assert found[0].tolist() == pytest.approx([1.0, -1.0, 0.0])


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(GrpoMathError, match=r"parts must be \[K, P, G\]"):
        normalize_then_sum(torch.zeros(2, 3), torch.zeros(2))
