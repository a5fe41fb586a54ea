"""Weights for the gap between sampler and proximal policy, and masks for rows that went too far.

A weight is sound only beside a loss whose ratio does *not* already contain the sampler; `objective` refuses
the rest. Dropped tokens stay in the denominator: otherwise rejection would raise the effective learning rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grpo_math.errors import GrpoMathError
from grpo_math.tokens import TrainedTokens, log_ratio

WeightLevel = Literal["token", "row"]
WeightAction = Literal["truncate", "drop"]


@dataclass(frozen=True, slots=True)
class SamplerWeight:
    """w = exp(o - b), proximal over sampler, [N] constants.

    truncate (TIS): min(w, high), and max(., low) where low > 0. drop (MIS, IcePop): 0 outside [low, high].
    level "row" uses the product over the row, so long rows leave the bounds sooner (TRL `sequence_*`).
    """

    level: WeightLevel = "token"
    action: WeightAction = "truncate"
    high: float = 2.0
    low: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < 1 <= self.high:
            raise GrpoMathError(
                f"0 <= low < 1 <= high, got {self.low}, {self.high}: 1 is the on-policy weight"
            )

    @torch.no_grad()
    def __call__(self, tokens: TrainedTokens) -> Tensor:
        if tokens.proximal_logprobs is None:
            raise GrpoMathError(
                "a sampler weight needs proximal log-probabilities, and the tokens carry none"
            )
        log_w = log_ratio(tokens.proximal_logprobs, tokens.sampler_logprobs)
        if self.level == "row":
            log_w = tokens.spread_over_rows(tokens.row_sum(log_w))
        weight = log_w.exp()
        if self.action == "truncate":
            return weight.clamp(self.low, self.high)
        return weight.masked_fill((weight > self.high) | (weight < self.low), 0.0)


@dataclass(frozen=True, slots=True)
class OffPolicyRowMask:
    """0 on every token of a row with A < 0 and mean_t(b - lp) > limit, else 1 (OPSM, DeepSeek-V3.2). limit
    in nats."""

    limit: float = 1e-4

    @torch.no_grad()
    def __call__(self, tokens: TrainedTokens) -> Tensor:
        gap = -log_ratio(tokens.trainer_logprobs, tokens.sampler_logprobs)
        too_far = tokens.spread_over_rows(tokens.row_mean(gap)) > self.limit
        return (~(too_far & (tokens.advantages < 0))).to(tokens.advantages.dtype)
