"""What a reward is made of, and how the part of the process fades. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from grpo_trainer.domain.spec import TrainingSpec
from upcycle.run_config.names import FADE

_EQUAL: Final = 1e-6
STREAK, BEGAN, WEIGHT = "fade_streak", "fade_since_step", "process_weight"
"""Metrics that remember where the fading is, so that a restart goes on with it."""


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One grader of a rubric: its weight, and what it scored."""

    name: str
    weight: float
    value: float


def weighted_mean(parts: Sequence[RewardPart]) -> float:
    """The reward of a rubric without a required grader that scored 0."""
    total = sum(part.weight for part in parts)
    return sum(part.weight * part.value for part in parts) / total if total else 0.0


def faded_reward(
    reward: float, parts: Sequence[RewardPart], process: Collection[str], weight: float
) -> float:
    """The reward in which the graders of the process count `weight` times as much. Where the reward is not
    the mean of its parts (a required grader scored 0, or they are not known), it stays."""
    if weight == 1.0 or not parts or abs(weighted_mean(parts) - reward) > _EQUAL:
        return reward
    total = sum(part.weight for part in parts)
    paid = sum(part.weight * part.value for part in parts if part.name in process)
    return reward - (1.0 - weight) * paid / total if total else reward


def faded_parts(
    parts: Sequence[RewardPart], process: Collection[str], weight: float
) -> tuple[RewardPart, ...]:
    """The parts with the weight that those of the process still have."""
    return tuple(
        replace(part, weight=part.weight * weight) if part.name in process else part for part in parts
    )


def process_weight(spec: TrainingSpec, before: Mapping[str, float], step: int) -> float:
    """How much the process counts in step `step`, from 1 to 0. before: all metrics of the step before, so a
    step that is taken again after a crash has the same."""
    began = int(before.get(BEGAN, 0.0))
    if spec.reward_schedule != FADE or not began:
        return 1.0
    return max(0.0, 1.0 - (step - began) / spec.fade_steps)


def fade_metrics(
    spec: TrainingSpec, before: Mapping[str, float], step: int, success: float | None
) -> dict[str, float]:
    """What a step remembers of the fading. success: share of all episodes that ended since the step before,
    whether or not they trained; None where none did, which changes nothing."""
    if spec.reward_schedule != FADE:
        return {}
    streak = before.get(STREAK, 0.0)
    if success is not None:
        streak = streak + 1.0 if success >= spec.fade_at else 0.0
    began = before.get(BEGAN, 0.0) or (float(step) if streak >= spec.fade_steps else 0.0)
    return {STREAK: streak, BEGAN: began, WEIGHT: process_weight(spec, before, step)}
