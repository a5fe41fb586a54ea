"""What a step's groups are paid: rewards as they were graded, or with the process counting less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from grpo_trainer.domain.rewards import faded_parts, faded_reward, process_weight
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.protocol import BatchGroup


def paid(
    spec: TrainingSpec, groups: Sequence[BatchGroup], before: Mapping[str, float], step: int
) -> tuple[BatchGroup, ...]:
    """The groups as step `step` trains them. before: all metrics of the step before."""
    weight = process_weight(spec, before, step)
    return tuple(groups) if weight == 1.0 else tuple(_faded(spec, group, weight) for group in groups)


def _faded(spec: TrainingSpec, group: BatchGroup, weight: float) -> BatchGroup:
    names = frozenset(spec.process_rewards)
    parts = group.parts or ((),) * len(group.rewards)
    return replace(
        group,
        rewards=tuple(
            faded_reward(reward, of_member, names, weight)
            for reward, of_member in zip(group.rewards, parts, strict=True)
        ),
        parts=tuple(faded_parts(of_member, names, weight) for of_member in parts),
        turn_rewards=tuple(tuple(weight * one for one in turns) for turns in group.turn_rewards),
    )
