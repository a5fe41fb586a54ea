"""The sampled tokens of a microbatch as flat arrays: the only view that losses have.

Prompt, tool and template tokens are not in it, so they leave every sum by construction, and a padded and a
packed batch are the same arrays. Every array is aligned to *the token being predicted*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_math.errors import MalformedRow

MAX_ABS_LOG_RATIO = 20.0
"""Log-ratios are clamped to this many nats before exp, so that one wild token cannot overflow a sum (as
verl does)."""


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """N sampled tokens of R rows. Log-probabilities in nats, at the temperature of sampling.

    trainer_logprobs [N]: under the policy in training; the only array that carries gradient.
    sampler_logprobs [N]: under the engine that sampled the token; NaN where it gave none (ratio 1).
    advantages [N]; row_of_token [N] int64 in 0..num_rows-1.
    proximal_logprobs [N]: under the trainer's weights before the first minibatch, for losses anchored there.
    reference_logprobs [N]: under the frozen reference of a KL penalty.
    entropies [N]: of the trainer's distribution.
    turn_of_token [N] int64: index of the turn within its row; needed by the mean over turns.
    row_shares [R]: part of its trajectory that a row is; None: every row is a whole one.
    """

    trainer_logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    row_of_token: Tensor
    num_rows: int
    proximal_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    entropies: Tensor | None = None
    turn_of_token: Tensor | None = None
    row_shares: Tensor | None = None

    def __post_init__(self) -> None:
        expected = self.trainer_logprobs.shape
        if len(expected) != 1:
            raise MalformedRow(f"trained tokens are flat [N] arrays, got {tuple(expected)}")
        for name in (
            "sampler_logprobs",
            "advantages",
            "row_of_token",
            "proximal_logprobs",
            "reference_logprobs",
        ):
            value = getattr(self, name)
            if value is not None and value.shape != expected:
                raise MalformedRow(f"{name} has shape {tuple(value.shape)}, expected {tuple(expected)}")

    def row_sum(self, values: Tensor) -> Tensor:
        """[N] -> [R]: sum over each row's tokens, differentiable."""
        return values.new_zeros(self.num_rows).index_add(0, self.row_of_token, values)

    def row_lengths(self) -> Tensor:
        """[R] number of trained tokens of each row, as float, at least 1 so that it can divide."""
        return self.row_sum(torch.ones_like(self.advantages)).clamp(min=1.0)

    def row_mean(self, values: Tensor) -> Tensor:
        """[N] -> [R]: mean over each row's tokens, differentiable; 0 for a row without tokens."""
        return self.row_sum(values) / self.row_lengths()

    def spread_over_rows(self, per_row: Tensor) -> Tensor:
        """[R] -> [N]: every token gets its row's value."""
        return per_row[self.row_of_token]


def log_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """log(p/q) per token, [N], clamped to +-MAX_ABS_LOG_RATIO; a non-finite `denominator` counts as ratio 1.

    vLLM can return NaN log-probabilities, and -inf for a token it masked: neither may reach a gradient as
    inf. The gradient flows through `numerator` alone.
    """
    anchor = torch.where(torch.isfinite(denominator), denominator, numerator).detach()
    return (numerator - anchor).clamp(-MAX_ABS_LOG_RATIO, MAX_ABS_LOG_RATIO)
