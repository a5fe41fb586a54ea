"""Groups of rollouts as training rows with their advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from grpo_math.advantages import advantage_function
from grpo_math.packing import TrainingRow
from grpo_trainer.domain.contexts import Context, EpisodeTokens
from grpo_trainer.learner.prepared import PreparedRow
from grpo_trainer.learner.protocol import BatchGroup


def batch_rows(groups: Sequence[BatchGroup], *, advantage: str, group_size: int) -> list[TrainingRow]:
    """Rows of a batch, one per context; every row of a rollout carries its advantage.

    group_size: of the run; groups of evaluations may be larger, each is compared within itself. The order is
    by group and member, whatever the order of arrival, so that equal batches are equal bits.
    """
    ordered = sorted(groups, key=lambda group: group.group_id)
    width = max([group_size, *(len(group.members) for group in ordered)])
    rewards = torch.full((len(ordered), width), torch.nan, dtype=torch.float64)
    for index, group in enumerate(ordered):
        for member, rollout in enumerate(group.members):
            rewards[index, member] = rollout.reward
    advantages = advantage_function(advantage)(rewards)
    rows: list[TrainingRow] = []
    for index, group in enumerate(ordered):
        for member, rollout in enumerate(group.members):
            credit = float(advantages[index, member])
            rows += _rows_of(rollout.tokens, group.group_id, credit)
    return rows


def _rows_of(tokens: EpisodeTokens, group_id: str, advantage: float) -> list[TrainingRow]:
    trained = [_trained_turns(context) for context in tokens.contexts]
    rows = [
        row_of(
            context,
            row_id=f"{tokens.trajectory_id}/{number}",
            group_id=group_id,
            advantage=advantage,
            temperature=tokens.temperature,
        )
        for number, context in enumerate(tokens.contexts)
        if trained[number]
    ]
    shares = [turns / sum(trained) for turns in trained if turns]
    return [replace(row, trajectory_share=share) for row, share in zip(rows, shares, strict=True)]


def _trained_turns(context: Context) -> int:
    """How many turns of a context have trained tokens."""
    return len({turn for turn, train in zip(context.turns, context.trained, strict=True) if train})


def row_of(
    tokens: Context | PreparedRow, *, row_id: str, group_id: str, advantage: float, temperature: float
) -> TrainingRow:
    """The arrays of a context as tensors [L], with the credit of its trajectory."""
    return TrainingRow(
        row_id=row_id,
        group_id=group_id,
        token_ids=torch.tensor(tokens.token_ids, dtype=torch.int64),
        trained=torch.tensor(tokens.trained, dtype=torch.bool),
        sampler_logprobs=torch.tensor(tokens.logprobs, dtype=torch.float32),
        advantage=advantage,
        turns=torch.tensor(tokens.turns, dtype=torch.int64),
        temperature=temperature,
    )
