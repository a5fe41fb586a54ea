"""Rewards of the process fade once the outcome is there: by hand, step by step, and alike after a crash."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.services.grpo_trainer.learner.test_unreadable_turns import rollout
from tests.services.grpo_trainer.runs.test_groups import SPEC

from grpo_trainer.domain.rewards import RewardPart, fade_metrics, faded_reward, process_weight, weighted_mean
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.runs.crediting import paid

PARTS = (RewardPart("solved", 3.0, 1.0), RewardPart("evidence", 1.0, 0.5))


def spec(**changes: Any) -> TrainingSpec:
    chosen = {"reward_schedule": "fade", "fade_at": 0.8, "fade_steps": 2, "process_rewards": ("evidence",)}
    return dataclasses.replace(SPEC, **{**chosen, **changes})


def weights(successes: list[float | None]) -> list[float]:
    """The weight of the process in each step."""
    before: dict[str, float] = {}
    found = []
    for step, success in enumerate(successes, start=1):
        found.append(process_weight(spec(), before, step))
        before = fade_metrics(spec(), before, step, success)
        assert before["process_weight"] == found[-1]
    return found


def test_two_steps_above_the_share_begin_a_fall_over_two_steps_that_nothing_turns_back() -> None:
    assert weights([0.9, 0.7, 0.8, 0.9, 0.1, 0.1, 0.1]) == [1, 1, 1, 1, 0.5, 0, 0]


def test_a_step_without_an_ended_episode_changes_nothing() -> None:
    assert weights([0.9, None, 0.9, None, 0.9]) == [1, 1, 1, 0.5, 0]


def test_a_run_without_the_schedule_measures_and_changes_nothing() -> None:
    assert fade_metrics(SPEC, {}, 1, 1.0) == {}
    group = BatchGroup("g", (rollout("a", 5), rollout("b", 5)), (1.0, 0.0))
    assert paid(SPEC, [group], {"fade_since_step": 1.0}, 9) == (group,)


def test_the_part_of_the_process_leaves_the_reward() -> None:
    assert weighted_mean(PARTS) == 0.875
    assert faded_reward(0.875, PARTS, {"evidence"}, 0.5) == 0.8125
    assert faded_reward(0.875, PARTS, {"evidence"}, 0.0) == 0.75
    assert faded_reward(0.875, PARTS, {"evidence"}, 1.0) == 0.875
    assert faded_reward(0.0, PARTS, {"evidence"}, 0.0) == 0.0, "a required grader scored 0"
    assert faded_reward(0.4, (), {"evidence"}, 0.0) == 0.4


def test_groups_are_paid_by_the_weight_of_their_step() -> None:
    other = (RewardPart("solved", 3.0, 0.0), RewardPart("evidence", 1.0, 1.0))
    group = BatchGroup(
        "g", (rollout("a", 5), rollout("b", 5)), (0.875, 0.25), ((1.0,), (0.5,)), (PARTS, other)
    )
    before = {"fade_since_step": 4.0}
    (half,) = paid(spec(), [group], before, 5)
    assert half.rewards == (0.8125, 0.125)
    assert half.turn_rewards == ((0.5,), (0.25,))
    assert [part.weight for part in half.parts[0]] == [3.0, 0.5]
    (gone,) = paid(spec(), [group], before, 6)
    assert gone.rewards == (0.75, 0.0)
    assert paid(spec(), [group], {}, 5) == (group,)


def test_a_step_that_is_taken_again_is_paid_alike() -> None:
    """It depends on the metrics of the step before, which its state holds, and on nothing since."""
    before = fade_metrics(spec(), {"fade_streak": 1.0}, 3, 0.9)
    assert before["fade_since_step"] == 3.0
    assert process_weight(spec(), before, 4) == process_weight(spec(), dict(before), 4) == 0.5


@pytest.mark.parametrize("step", [5, 50])
def test_it_never_falls_below_nothing(step: int) -> None:
    assert process_weight(spec(), {"fade_since_step": 1.0}, step) == 0.0
