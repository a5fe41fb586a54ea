"""Prepared inputs as training rows, each with its credit; the order is that of the inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_math.advantages import advantage_function
from grpo_math.errors import GrpoMathError
from grpo_math.packing import TrainingRow
from grpo_trainer.domain.errors import InvalidInput
from grpo_trainer.domain.trajectories import has_spread
from grpo_trainer.learner.prepared import PreparedBatch, PreparedRow
from grpo_trainer.learner.rows import row_of


@dataclass(frozen=True, slots=True)
class CreditedRow:
    """A row, and where it comes from. advantage: of its trajectory; reward: scaled."""

    row: TrainingRow
    input_index: int
    group_index: int | None
    reward: float
    advantage: float


def credited_rows(batch: PreparedBatch) -> list[CreditedRow]:
    """All rows of a batch. Raises InvalidInput for an advantage that does not exist."""
    rewards = [(one.reward or 0.0) * batch.reward_scale for one in batch.inputs]
    advantages = _advantages(batch, rewards)
    rows = []
    for index, one in enumerate(batch.inputs):
        group = None if batch.group_size is None else index // batch.group_size
        for number, prepared in enumerate(one.rows):
            row = row_of(
                prepared,
                row_id=f"{index:06d}/{number}",
                group_id=f"{index if group is None else group:06d}",
                advantage=advantages[index],
                temperature=prepared.temperature,
            )
            row = _with_own_credit(row, prepared)
            rows.append(CreditedRow(row, index, group, rewards[index], advantages[index]))
    return rows


def num_without_spread(batch: PreparedBatch) -> int:
    """Groups whose members all have the same reward: they teach nothing."""
    size = batch.group_size
    if size is None or size < 2:
        return 0
    groups = [batch.inputs[first : first + size] for first in range(0, len(batch.inputs), size)]
    return sum(not has_spread(one.reward for one in group) for group in groups)


def weighted(credited: CreditedRow, weights: Tensor) -> TrainingRow:
    """The row with one weight per token instead of its credit. weights [L]."""
    return replace(credited.row, advantages=weights)


def _advantages(batch: PreparedBatch, rewards: list[float]) -> list[float]:
    size = batch.group_size
    if size is None:  # SFT, or advantages that came with the rows
        return [1.0] * len(rewards)
    if size == 1:
        return rewards
    try:
        grouped = torch.tensor(rewards, dtype=torch.float64).view(-1, size)
        found: list[float] = advantage_function(batch.advantage)(grouped).flatten().tolist()
    except GrpoMathError as error:
        raise InvalidInput(str(error)) from error
    return found


def _with_own_credit(row: TrainingRow, prepared: PreparedRow) -> TrainingRow:
    """With the values per token that the caller brought, where there are any."""
    own = prepared.weights if prepared.weights is not None else prepared.advantages
    return row if own is None else replace(row, advantages=torch.tensor(own, dtype=torch.float32))
