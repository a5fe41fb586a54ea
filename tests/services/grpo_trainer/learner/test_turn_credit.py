"""Turns of a row have their own advantages; parts of a reward reach the advantage that a run names."""

from __future__ import annotations

import pytest
import torch
from tests.services.grpo_trainer.learner.test_unreadable_turns import rollout

from grpo_trainer.domain.rewards import RewardPart
from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.learner.rows import Credit, batch_rows

BY_TURN = Credit("dr_grpo", discount=1.0)


def of_tokens(group: BatchGroup, credit: Credit) -> dict[str, list[float]]:
    """Advantages of the trained tokens, by row."""
    rows = batch_rows([group], credit=credit, group_size=2).rows
    found = {}
    for row in rows:
        values = (
            row.advantages if row.advantages is not None else torch.full(row.trained.shape, row.advantage)
        )
        found[row.row_id] = values[row.trained].tolist()
    return found


def test_each_turn_has_the_advantage_of_what_it_led_to() -> None:
    """Returns 1.5, 1 and 0, 0: turn 0 is compared at mean 0.75, turn 1 at 0.5."""
    members = (rollout("a", 5, 6), rollout("b", 5, 6))
    group = BatchGroup("g", members, (1.0, 0.0), ((0.5, 0.0), (0.0, 0.0)))
    assert of_tokens(group, BY_TURN) == {"a/0": [0.75, 0.5], "b/0": [-0.75, -0.5]}
    assert of_tokens(group, Credit("dr_grpo")) == {"a/0": [0.5, 0.5], "b/0": [-0.5, -0.5]}
    assert of_tokens(group, Credit("dr_grpo", 1.0, reward_weight=0.0)) == of_tokens(group, Credit("dr_grpo"))


def test_rewards_that_are_equal_can_differ_by_turn() -> None:
    """Both earned 0.5 in all: one early, one late. Returns 1.5, 1.0 and 1.5, 1.5."""
    members = (rollout("a", 5, 6), rollout("b", 5, 6))
    group = BatchGroup("g", members, (1.0, 1.0), ((0.5, 0.0), (0.0, 0.5)))
    assert of_tokens(group, BY_TURN) == {"a/0": [0.0, -0.25], "b/0": [0.0, 0.25]}


def test_turns_after_a_fork_go_on_counting() -> None:
    first = TokenRow.of([1, 5], [False, True], [0.0, -1.0], [0, 0])
    second = TokenRow.of([1, 6, 7], [False, True, True], [0.0, -1.0, -1.0], [0, 0, 1])
    second.first_turn = 1
    forked = EpisodeTokens("f", (first, second), 1.0, 0, 0, 3)
    group = BatchGroup("g", (forked, rollout("b", 5, 6, 7)), (0.0, 0.0), ((0.0, 1.0, 2.0), ()))
    # Returns 3, 3, 2 and 0, 0, 0.
    assert of_tokens(group, BY_TURN) == {"f/0": [1.5], "f/1": [1.5, 1.0], "b/0": [-1.5, -1.5, -1.0]}


def test_an_unreadable_turn_trains_by_its_own_credit() -> None:
    """Its trajectory won, and the turn itself led to less than the other's."""
    members = (rollout("a", 7, 5, unreadable=frozenset({0})), rollout("b", 5, 6))
    group = BatchGroup("g", members, (1.0, 0.0), ((0.0, 0.0), (2.0, 0.0)))
    batch = batch_rows([group], credit=BY_TURN, group_size=2)
    assert batch.num_masked == 0
    assert of_tokens(group, BY_TURN)["a/0"] == [-0.5, 0.5]


def test_parts_of_rewards_are_normalised_each() -> None:
    parts = tuple(
        (RewardPart("solved", 1.0, solved), RewardPart("style", 1.0, style))
        for solved, style in ((1.0, 0.51), (1.0, 0.5), (0.0, 0.51), (0.0, 0.5))
    )
    members = tuple(rollout(name, 5) for name in "abcd")
    group = BatchGroup("g", members, (0.755, 0.75, 0.255, 0.25), ((),) * 4, parts)
    found = of_tokens(group, Credit("normalize_then_sum"))
    assert [values[0] for values in found.values()] == pytest.approx([1.2246, 0, 0, -1.2246], abs=0.02)


def test_a_reward_whose_parts_are_not_known_is_one_part() -> None:
    group = BatchGroup("g", (rollout("a", 5), rollout("b", 5)), (1.0, 0.0))
    found = of_tokens(group, Credit("normalize_then_sum"))
    assert found["a/0"][0] == -found["b/0"][0] > 0
