"""Advantages: the credit of each rollout against its own group, exact at the edges.

Rewards are [P, G]: P groups of up to G members; NaN marks a member that never got a reward (failed
infrastructure), which leaves every statistic and receives exactly 0. All arithmetic is float64. A tied
group is exactly 0, and so is a group with fewer than two members: one rollout has nothing to be compared
with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from grpo_math.errors import GrpoMathError, unknown_name

STD_EPSILON: Final = 1e-4
"""Added to a standard deviation before dividing by it (the value of TRL's GRPOTrainer)."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Statistics over the present members. rewards, present: [P, G]; count, mean: [P, 1]."""

    rewards: Tensor
    present: Tensor
    count: Tensor
    mean: Tensor
    informative: Tensor

    def centred(self) -> Tensor:
        """rewards - mean, [P, G]; exactly 0 where missing, tied or alone."""
        return torch.where(self.informative, self.rewards - self.mean, 0.0)

    def std(self) -> Tensor:
        """Unbiased standard deviation, [P, 1]; 0 where a group has fewer than two members."""
        squares = torch.where(self.present, (self.rewards - self.mean) ** 2, 0.0)
        return (squares.sum(dim=1, keepdim=True) / (self.count - 1).clamp(min=1)).sqrt()


def _group(rewards: Tensor) -> _Group:
    if rewards.ndim != 2 or rewards.shape[1] < 1:
        raise GrpoMathError(f"rewards must be [P, G] with G >= 1, got {tuple(rewards.shape)}")
    if torch.isinf(rewards).any():
        raise GrpoMathError("rewards must be finite (NaN marks a missing member), got an infinity")
    values = rewards.double()
    present = ~torch.isnan(values)
    filled = torch.where(present, values, 0.0)
    count = present.sum(dim=1, keepdim=True)
    mean = filled.sum(dim=1, keepdim=True) / count.clamp(min=1)
    lowest = torch.where(present, values, torch.inf).amin(dim=1, keepdim=True)
    highest = torch.where(present, values, -torch.inf).amax(dim=1, keepdim=True)
    return _Group(filled, present, count, mean, present & (count >= 2) & (highest > lowest))


def dr_grpo(rewards: Tensor) -> Tensor:
    """reward - group mean. [P, G] -> [P, G]. No division by the spread, so no bias towards easy or hard tasks
    (Liu et al. 2025, "Understanding R1-Zero-like training")."""
    return _group(rewards).centred()


def grpo(rewards: Tensor, *, epsilon: float = STD_EPSILON) -> Tensor:
    """(reward - group mean) / (group std + epsilon), std unbiased. [P, G] -> [P, G] (Shao et al. 2024)."""
    group = _group(rewards)
    return group.centred() / (group.std() + epsilon)


def rloo(rewards: Tensor) -> Tensor:
    """reward - mean of the other members, which is n/(n-1) of `dr_grpo`. [P, G] -> [P, G] (Ahmadian et al.
    2024)."""
    group = _group(rewards)
    return group.centred() * group.count / (group.count - 1).clamp(min=1)


def batch(rewards: Tensor, *, epsilon: float = STD_EPSILON) -> Tensor:
    """(reward - group mean) / (std of the raw rewards of the whole batch + epsilon). [P, G] -> [P, G].

    The std is of the raw rewards, not of the centred ones (TRL `scale_rewards="batch"`)."""
    group = _group(rewards)
    known = group.rewards[group.present]
    spread = known.std(correction=1) if known.numel() > 1 else known.new_zeros(())
    return group.centred() / (spread + epsilon)


def with_batch_baseline(rewards: Tensor, advantages: Tensor) -> Tensor:
    """Advantages in which groups of one member have reward - mean of the other groups, each of which counts
    once, by its mean. [P, G], [P, G] -> [P, G]. Its own reward is not in its baseline, which would bias the
    gradient. All other groups stay as they are; where all groups have one mean, or there is no other group,
    it is exactly 0."""
    group = _group(rewards)
    known = group.count > 0
    others = known.sum() - known.long()
    baseline = (group.mean[known].sum() - group.mean) / others.clamp(min=1)
    means = group.mean[known]
    tied = bool((means == means[:1]).all())
    single = group.present & (group.count == 1)
    credit = torch.zeros_like(group.rewards) if tied else group.rewards - baseline
    return torch.where(single & (others > 0), credit, advantages)


def max_rl(rewards: Tensor) -> Tensor:
    """(reward - mean) / mean, 0 where the mean is 0: weight ~1/p on hard tasks. [P, G] -> [P, G].

    Rewards must be >= 0: a negative mean would turn the sign of the credit."""
    group = _group(rewards)
    if bool((group.rewards < 0).any()):
        raise GrpoMathError(
            f"max_rl needs rewards >= 0, got {float(group.rewards.min()):g}; shift the rubric or use dr_grpo"
        )
    positive = group.mean > 0
    return torch.where(positive, group.centred() / torch.where(positive, group.mean, 1.0), 0.0)


AdvantageFunction = Callable[[Tensor], Tensor]


def m_grpo(rewards: Tensor) -> Tensor:
    """The advantage of `grpo`, for multi-turn trajectories whose losses are averaged by `turn_mean` (M-GRPO,
    WebAgent-R1, arXiv:2505.16421). [P, G] -> [P, G]."""
    return grpo(rewards)


def normalize_then_sum(parts: Tensor, weights: Tensor, *, epsilon: float = STD_EPSILON) -> Tensor:
    """Each part of the reward is normalised within its group, then they are added by weight, then the batch
    is normalised: a part of small variance is not drowned by one of large variance (GDPO, arXiv:2601.05242;
    TRL's `multi_objective_aggregation="normalize_then_sum"`). parts [K, P, G], weights [K] -> [P, G]; NaN: a
    member without that part."""
    if parts.ndim != 3 or weights.shape != parts.shape[:1]:
        raise GrpoMathError(
            f"parts must be [K, P, G] and weights [K], got {tuple(parts.shape)} and {tuple(weights.shape)}"
        )
    total = sum(
        (weight * grpo(part, epsilon=epsilon) for weight, part in zip(weights, parts, strict=True)),
        start=torch.zeros(parts.shape[1:], dtype=torch.float64),
    )
    present = (~torch.isnan(parts)).any(dim=0)
    known = total[present]
    if known.numel() < 2:
        return torch.zeros_like(total)
    normalized = (total - known.mean()) / (known.std(correction=1) + epsilon)
    # A group without any spread has nothing to compare, whatever the mean of the others is.
    informative = present & (total != 0).any(dim=1, keepdim=True)
    return torch.where(informative, normalized, 0.0)


def hierarchical(rewards: Tensor, proposes: Tensor) -> Tensor:
    """Of a policy that plays against itself: reward - mean of the group where it solves, so each attempt is
    compared with others at the same proposed task; reward - mean of all proposals of the batch where it
    proposes, whatever tasks they were made for. [P, G], [P] of which groups propose -> [P, G]. Where all
    proposals are paid alike it is exactly 0."""
    if proposes.shape != rewards.shape[:1]:
        raise GrpoMathError(f"proposes must be [P] for rewards [P, G], got {tuple(proposes.shape)}")
    solvers = dr_grpo(rewards)
    missing = torch.full_like(rewards, torch.nan, dtype=torch.float64)
    proposals = torch.where(proposes[:, None], rewards.double(), missing)
    compared = dr_grpo(proposals.reshape(1, -1)).reshape(rewards.shape)
    return torch.where(proposes[:, None], compared, solvers)


OF_PARTS: Final = ("normalize_then_sum",)
"""Advantages that need the parts of the rewards."""
OF_ROLES: Final = ("hierarchical",)
"""Advantages that need to know which groups propose."""

ADVANTAGES: Final[dict[str, AdvantageFunction]] = {
    "dr_grpo": dr_grpo,
    "grpo": grpo,
    "rloo": rloo,
    "batch": batch,
    "max_rl": max_rl,
    "m_grpo": m_grpo,
}
"""Advantages that need nothing but rewards [P, G], by the name that a training configuration uses."""

DEFAULT_ADVANTAGE: Final = "dr_grpo"

AGGREGATION_OF: Final = {"m_grpo": "turn_mean"}
"""Advantages that are defined together with how losses are averaged."""


def advantage_function(name: str) -> AdvantageFunction:
    """The advantage of that name. Raises UnknownName with the nearest valid one."""
    if name not in ADVANTAGES:
        raise unknown_name("advantage", name, ADVANTAGES)
    return ADVANTAGES[name]
