"""Groups of rollouts as training rows with their advantages."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from grpo_math.advantages import (
    DEFAULT_ADVANTAGE,
    advantage_function,
    hierarchical,
    normalize_then_sum,
    with_batch_baseline,
)
from grpo_math.packing import TrainingRow
from grpo_math.turn_credit import credit_by_turn, turn_returns
from grpo_trainer.domain.rewards import RewardPart
from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.prepared import PreparedRow
from grpo_trainer.learner.protocol import BatchGroup
from upcycle.run_config.names import HIERARCHICAL, NORMALIZE_THEN_SUM

_WHOLE: Final = "reward"
_PACKED: Final = {"i": torch.int32, "f": torch.float32}


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Rows of a batch. num_masked: turns that could not be read and do not train."""

    rows: list[TrainingRow]
    num_masked: int


@dataclass(frozen=True, slots=True)
class Credit:
    """How rewards of a group become the advantages of its members' turns. advantage: its name. discount and
    reward_weight: of what turns earned; None: all turns of a member have its advantage.
    batch_baseline: a group of one is compared with the other groups of the batch."""

    advantage: str = DEFAULT_ADVANTAGE
    discount: float | None = None
    reward_weight: float = 1.0
    batch_baseline: bool = False


def batch_rows(groups: Sequence[BatchGroup], *, credit: Credit, group_size: int) -> BatchRows:
    """Rows of a batch, as tensors; every turn of a rollout carries its advantage.

    group_size: of the run; groups of evaluations may be larger, each is compared within itself. The order is
    by group and member, whatever the order of arrival, so that equal batches are equal bits.
    """
    ordered = sorted(groups, key=lambda group: group.group_id)
    credits = (
        _by_turn(ordered, credit) if credit.discount is not None else _by_episode(ordered, credit, group_size)
    )
    rows: list[TrainingRow] = []
    num_masked = 0
    for group, of_group in zip(ordered, credits, strict=True):
        for rollout, of_turns in zip(group.rollouts, of_group, strict=True):
            # What could not be read is unlearned where it cost reward; rewarding it would teach it.
            contexts = [row.without(_rewarded(row, of_turns)) for row in rollout.rows]
            num_masked += sum(len(_rewarded(row, of_turns)) for row in rollout.rows)
            rows += _rows_of(rollout, contexts, group.group_id, of_turns)
    return BatchRows(rows, num_masked)


def _rewarded(row: TokenRow, of_turns: Sequence[float]) -> frozenset[int]:
    """Its unreadable turns whose advantage is not negative."""
    return frozenset(turn for turn in row.unreadable if of_turns[_place(row, turn, of_turns)] >= 0)


def _place(row: TokenRow, turn: int, of_turns: Sequence[float]) -> int:
    """Where the advantage of a turn of a row lies; one alone is for all turns."""
    return 0 if len(of_turns) == 1 else row.first_turn + turn


def _by_episode(groups: Sequence[BatchGroup], credit: Credit, group_size: int) -> list[list[list[float]]]:
    """Groups, members, and the one advantage of each."""
    width = max([group_size, *(len(group.rewards) for group in groups)])
    advantages = _advantages(groups, credit, width)
    return [
        [[float(advantages[index, member])] for member in range(len(group.rollouts))]
        for index, group in enumerate(groups)
    ]


def _advantages(groups: Sequence[BatchGroup], credit: Credit, width: int) -> torch.Tensor:
    """[P, width]."""
    if credit.advantage == NORMALIZE_THEN_SUM:
        return normalize_then_sum(*_parts(groups, width))
    rewards = _padded([group.rewards for group in groups], width)
    if credit.advantage == HIERARCHICAL:
        return hierarchical(rewards, torch.tensor([group.proposes for group in groups]))
    advantages = advantage_function(credit.advantage)(rewards)
    return with_batch_baseline(rewards, advantages) if credit.batch_baseline else advantages


def _by_turn(groups: Sequence[BatchGroup], credit: Credit) -> list[list[list[float]]]:
    returns = [
        [
            turn_returns(
                group.rewards[member],
                group.turn_rewards[member] if group.turn_rewards else (),
                max(1, rollout.num_turns),
                discount=1.0 if credit.discount is None else credit.discount,
                weight=credit.reward_weight,
            )
            for member, rollout in enumerate(group.rollouts)
        ]
        for group in groups
    ]
    return credit_by_turn(returns, advantage_function(credit.advantage))


def _padded(rewards: Sequence[Sequence[float]], width: int) -> torch.Tensor:
    """[P, width], NaN where a group has fewer members."""
    padded = torch.full((len(rewards), width), torch.nan, dtype=torch.float64)
    for index, of_group in enumerate(rewards):
        padded[index, : len(of_group)] = torch.tensor(of_group, dtype=torch.float64)
    return padded


def _parts(groups: Sequence[BatchGroup], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[K, P, width] values of the parts of all rewards, and their weights [K]. A reward whose parts are not
    known is one part of its own."""
    values: dict[str, torch.Tensor] = {}
    weights: dict[str, float] = {}
    for index, group in enumerate(groups):
        for member, reward in enumerate(group.rewards):
            known = group.parts[member] if group.parts else ()
            for part in known or (RewardPart(_WHOLE, 1.0, reward),):
                into = values.setdefault(
                    part.name, torch.full((len(groups), width), torch.nan, dtype=torch.float64)
                )
                into[index, member] = part.value
                weights[part.name] = part.weight
    names = sorted(values)
    return torch.stack([values[name] for name in names]), torch.tensor([weights[name] for name in names])


def _rows_of(
    tokens: EpisodeTokens, contexts: Sequence[TokenRow], group_id: str, of_turns: Sequence[float]
) -> list[TrainingRow]:
    trained = [_trained_turns(row) for row in contexts]
    rows = [
        _credited(
            row_of(
                row,
                row_id=f"{tokens.trajectory_id}/{number}",
                group_id=group_id,
                advantage=of_turns[0],
                temperature=tokens.temperature,
            ),
            row,
            of_turns,
        )
        for number, row in enumerate(contexts)
        if trained[number]
    ]
    shares = [turns / sum(trained) for turns in trained if turns]
    return [replace(row, trajectory_share=share) for row, share in zip(rows, shares, strict=True)]


def _credited(made: TrainingRow, row: TokenRow, of_turns: Sequence[float]) -> TrainingRow:
    """The row with an advantage for each token, where turns have their own."""
    if len(of_turns) == 1:
        return made
    credits = torch.tensor(of_turns, dtype=torch.float64)
    return replace(made, advantages=credits[_tensor(row.turns, torch.int64) + row.first_turn])


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
