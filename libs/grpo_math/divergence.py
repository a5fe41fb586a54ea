"""KL estimators between the trainer and another policy on identical tokens, and the numbers that tell of a
mismatch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import torch
from torch import Tensor

from grpo_math.errors import unknown_name
from grpo_math.tokens import TrainedTokens, log_ratio

KL_KINDS: Final = ("k1", "k2", "k3", "k3_plus")
KL_PLACEMENTS: Final = ("loss", "reward")


def kl_estimate(trainer_logprobs: Tensor, other_logprobs: Tensor, kind: str = "k3") -> Tensor:
    """Per-token estimate of KL(trainer || other), nats, [N] -> [N] (Schulman, "Approximating KL divergence").

    With d = trainer - other: k1 = d (unbiased, as a loss its gradient has zero mean); k2 = d^2/2 (as a
    loss, the right on-policy gradient); k3 = exp(-d) + d - 1 (>= 0, unbiased value); k3_plus = value of k3
    with the gradient of k2.
    """
    d = trainer_logprobs - other_logprobs
    if kind == "k1":
        return d
    if kind == "k2":
        return 0.5 * d**2
    k3 = torch.exp(-d) + d - 1
    if kind == "k3":
        return k3
    if kind == "k3_plus":
        k2 = 0.5 * d**2
        return k2 + (k3 - k2).detach()
    raise unknown_name("KL estimator", kind, KL_KINDS)


def kl_credit(divergence: Tensor, coefficient: float, mean: float) -> Tensor:
    """KL as reward: coefficient * (mean - divergence), added to the advantages of trained tokens, detached,
    [N] -> [N].

    mean: of the divergence over all trained tokens of the step, so that the credits of a step add up to 0
    (Tinker).
    """
    return coefficient * (mean - divergence.detach())


@dataclass(frozen=True, slots=True)
class MismatchSums:
    """Sums over trained tokens that add up over microbatches and ranks; `mismatch_report` turns them into
    means."""

    num_tokens: float = 0.0
    k3: float = 0.0
    ratio: float = 0.0
    ratio_squared: float = 0.0
    ratio_max: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    entropy: float = 0.0
    unknown_sampler_logprobs: float = 0.0

    def __add__(self, other: MismatchSums) -> MismatchSums:
        added = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return MismatchSums(**{**added, "ratio_max": max(self.ratio_max, other.ratio_max)})


@dataclass(frozen=True, slots=True)
class MismatchReport:
    """Trainer against sampler on the trained tokens. KL and entropy in nats, fractions of tokens."""

    mismatch_kl: float
    ratio_mean: float
    ratio_max: float
    clip_fraction_low: float
    clip_fraction_high: float
    entropy: float
    effective_sample_fraction: float
    unknown_sampler_logprobs: int


@torch.no_grad()
def mismatch_sums(tokens: TrainedTokens, *, clip_low: float, clip_high: float) -> MismatchSums:
    """The sums of one microbatch: ratio = exp(trainer - sampler), k3 = ratio - 1 - log ratio."""
    if tokens.trainer_logprobs.numel() == 0:
        return MismatchSums()
    log_r = log_ratio(tokens.trainer_logprobs.double(), tokens.sampler_logprobs.double())
    r = log_r.exp()
    entropy = tokens.entropies.double().sum() if tokens.entropies is not None else r.new_zeros(())
    unknown = (~torch.isfinite(tokens.sampler_logprobs)).sum()
    low, high = (r < 1 - clip_low).sum(), (r > 1 + clip_high).sum()
    parts = [(r - 1 - log_r).sum(), r.sum(), (r * r).sum(), r.max(), low, high, entropy, unknown]
    return MismatchSums(float(r.numel()), *torch.stack([p.double() for p in parts]).tolist())


def mismatch_report(sums: MismatchSums) -> MismatchReport:
    """Means over all trained tokens of a step; all zero where there were none."""
    n = max(sums.num_tokens, 1.0)
    return MismatchReport(
        mismatch_kl=sums.k3 / n,
        ratio_mean=sums.ratio / n,
        ratio_max=sums.ratio_max,
        clip_fraction_low=sums.clipped_low / n,
        clip_fraction_high=sums.clipped_high / n,
        entropy=sums.entropy / n,
        effective_sample_fraction=sums.ratio**2 / (n * sums.ratio_squared) if sums.ratio_squared else 0.0,
        unknown_sampler_logprobs=int(sums.unknown_sampler_logprobs),
    )
