"""Credit by turn: what a turn led to, compared with what others of its group led to from the same turn on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo_math.advantages import AdvantageFunction

TurnRewards = Sequence[float]


def turn_returns(
    outcome: float, turn_rewards: TurnRewards, num_turns: int, *, discount: float, weight: float
) -> list[float]:
    """What each of `num_turns` turns led to: weight * its own reward and those after it, and the outcome,
    which the last turn earns; every turn further back counts `discount` less.

    Turn rewards beyond num_turns are left out, missing ones are 0."""
    found: list[float] = []
    following = outcome
    for turn in reversed(range(num_turns)):
        own = weight * turn_rewards[turn] if turn < len(turn_rewards) else 0.0
        following = own + (following if turn == num_turns - 1 else discount * following)
        found.append(following)
    return found[::-1]


def credit_by_turn(
    returns: Sequence[Sequence[Sequence[float]]], advantage: AdvantageFunction
) -> list[list[list[float]]]:
    """Advantages in the shape of `returns`: groups, members, turns. A turn is compared with the turns of the
    same index in its group; where no other member got that far, the whole trajectories are compared.

    (Credit by turn as in Zeng et al. 2025, arXiv:2505.11821; the index is the state that members share.)"""
    if not returns:
        return []
    deepest = max((len(member) for group in returns for member in group), default=0)
    whole = advantage(_at(returns, 0))
    credits = [[[0.0] * len(member) for member in group] for group in returns]
    for turn in range(deepest):
        at_turn = _at(returns, turn)
        found = advantage(at_turn)
        reached = (~torch.isnan(at_turn)).sum(dim=1)
        for index, group in enumerate(credits):
            chosen = found if int(reached[index]) > 1 else whole
            for member, turns in enumerate(group):
                if turn < len(turns):
                    turns[turn] = float(chosen[index, member])
    return credits


def _at(returns: Sequence[Sequence[Sequence[float]]], turn: int) -> Tensor:
    """[P, G] returns from this turn on, NaN where a member did not get so far."""
    width = max(1, *(len(group) for group in returns))
    values = torch.full((len(returns), width), torch.nan, dtype=torch.float64)
    for index, group in enumerate(returns):
        for member, turns in enumerate(group):
            if turn < len(turns):
                values[index, member] = turns[turn]
    return values
