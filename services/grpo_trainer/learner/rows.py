"""Groups of rollouts as training rows with their advantages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from grpo_math.advantages import advantage_function
from grpo_math.packing import TrainingRow
from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.prepared import PreparedRow
from grpo_trainer.learner.protocol import BatchGroup

_PACKED: Final = {"i": torch.int32, "f": torch.float32}


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Rows of a batch. num_masked: turns that could not be read and do not train."""

    rows: list[TrainingRow]
    num_masked: int


def batch_rows(groups: Sequence[BatchGroup], *, advantage: str, group_size: int) -> BatchRows:
    """Rows of a batch, as tensors; every row of a rollout carries its advantage.

    group_size: of the run; groups of evaluations may be larger, each is compared within itself. The order is
    by group and member, whatever the order of arrival, so that equal batches are equal bits.
    """
    ordered = sorted(groups, key=lambda group: group.group_id)
    width = max([group_size, *(len(group.rewards) for group in ordered)])
    rewards = torch.full((len(ordered), width), torch.nan, dtype=torch.float64)
    for index, group in enumerate(ordered):
        rewards[index, : len(group.rewards)] = torch.tensor(group.rewards, dtype=torch.float64)
    advantages = advantage_function(advantage)(rewards)
    rows: list[TrainingRow] = []
    num_masked = 0
    for index, group in enumerate(ordered):
        for member, rollout in enumerate(group.rollouts):
            credit = float(advantages[index, member])
            # What could not be read is unlearned where it cost reward; rewarding it would teach it.
            contexts = rollout.rows if credit < 0 else tuple(row.readable for row in rollout.rows)
            num_masked += 0 if credit < 0 else rollout.num_unreadable
            rows += _rows_of(rollout, contexts, group.group_id, credit)
    return BatchRows(rows, num_masked)


def _rows_of(
    tokens: EpisodeTokens, contexts: Sequence[TokenRow], group_id: str, advantage: float
) -> list[TrainingRow]:
    trained = [_trained_turns(row) for row in contexts]
    rows = [
        row_of(
            row,
            row_id=f"{tokens.trajectory_id}/{number}",
            group_id=group_id,
            advantage=advantage,
            temperature=tokens.temperature,
        )
        for number, row in enumerate(contexts)
        if trained[number]
    ]
    shares = [turns / sum(trained) for turns in trained if turns]
    return [replace(row, trajectory_share=share) for row, share in zip(rows, shares, strict=True)]


def _trained_turns(row: TokenRow) -> int:
    """How many turns of a row have trained tokens."""
    return len({turn for turn, train in zip(row.turns, row.trained, strict=True) if train})


def row_of(
    tokens: TokenRow | PreparedRow, *, row_id: str, group_id: str, advantage: float, temperature: float
) -> TrainingRow:
    """The arrays of a row as tensors [L], with the credit of its trajectory."""
    return TrainingRow(
        row_id=row_id,
        group_id=group_id,
        token_ids=_tensor(tokens.token_ids, torch.int64),
        trained=_tensor(tokens.trained, torch.bool),
        sampler_logprobs=_tensor(tokens.logprobs, torch.float32),
        advantage=advantage,
        turns=_tensor(tokens.turns, torch.int64),
        temperature=temperature,
    )


def _tensor(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """A copy [L]. What waits packed is read as it lies there: value by value takes ten times as long."""
    if isinstance(values, bytearray):
        return torch.frombuffer(values, dtype=torch.uint8).to(dtype, copy=True)
    if isinstance(values, array):
        return torch.frombuffer(values, dtype=_PACKED[values.typecode]).to(dtype, copy=True)
    return torch.tensor(values, dtype=dtype)
