"""GRPO with double-sided importance sampling, written as a custom loss.

A token counts with its ratio r = exp(policy - sampler) as a constant weight, and only where r lies within
[1 - low, 1 + high]: a token that moved too far either way teaches nothing, instead of being clipped on one
side. Source: GLM-4.5 and its successors' asynchronous RL.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from upcycle.train import DatumTensors


def advantages(data: list[DatumTensors]) -> list[float]:
    """Reward minus the mean of the datum's group: each trajectory counts once, however many rows it has."""
    rewards: dict[int | None, dict[int, float]] = defaultdict(dict)
    for datum in data:
        rewards[datum.group_index][datum.input_index] = datum.reward
    means = {group: sum(members.values()) / len(members) for group, members in rewards.items()}
    return [datum.reward - means[datum.group_index] for datum in data]


@dataclass(frozen=True, slots=True)
class DoubleSided:
    """`trainer.forward_backward_custom(batch, DoubleSided(), group_size=8)`."""

    low: float = 0.2
    high: float = 0.28

    def __call__(self, data: list[DatumTensors], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        """-mean over sampled tokens of kept * r * A * log-probability; and how many tokens were kept."""
        total, count, kept_count = logprobs[0].new_zeros(()), 0.0, 0.0
        for datum, policy, advantage in zip(data, logprobs, advantages(data), strict=True):
            mask = torch.tensor(datum.mask)
            ratio = torch.exp(policy.detach() - torch.tensor(datum.sampling_logprobs))
            kept = mask * (ratio >= 1 - self.low) * (ratio <= 1 + self.high)
            total = total - (kept * ratio * advantage * policy).sum()
            count += float(mask.sum())
            kept_count += float(kept.sum())
        return total / max(count, 1.0), {"kept_fraction": kept_count / max(count, 1.0)}
