"""Token losses: one frozen class per loss, called with the trained tokens, giving [N] values whose sum is
minimised.

Notation: lp trainer, b sampler, o proximal log-prob; r = exp(lp - b) unless anchored at o; A advantage; sg
= detached. The gradient named in each class is dl/dlp. All ratio losses have gradient -A at r = 1, so on
policy, with one update per batch, they are one algorithm; they differ in what bounds a token that has moved
away from the sampler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from grpo_math.errors import GrpoMathError
from grpo_math.tokens import MAX_ABS_LOG_RATIO, TrainedTokens, log_ratio

Anchor = Literal["sampler", "proximal"]
RatioLevel = Literal["token", "row"]


class TokenLoss(Protocol):
    """A loss: tokens -> [N]. `holds_sampler_ratio`: its value already corrects for the sampler's
    distribution."""

    @property
    def holds_sampler_ratio(self) -> bool: ...

    def __call__(self, tokens: TrainedTokens) -> Tensor: ...


def _anchor_logprobs(tokens: TrainedTokens, anchor: Anchor) -> Tensor:
    if anchor == "sampler":
        return tokens.sampler_logprobs
    if tokens.proximal_logprobs is None:
        raise GrpoMathError(
            "this loss is anchored at the proximal log-probabilities, and the tokens carry none"
        )
    return tokens.proximal_logprobs


def log_weight(tokens: TrainedTokens, anchor: Anchor, level: RatioLevel) -> Tensor:
    """[N] log-ratio of each token, or of its row's geometric mean; at row level the gradient flows through
    the mean."""
    log_r = log_ratio(tokens.trainer_logprobs, _anchor_logprobs(tokens, anchor))
    return log_r if level == "token" else tokens.spread_over_rows(tokens.row_mean(log_r))


def _positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise GrpoMathError(f"{name} must be a finite number > 0, got {value}")


@dataclass(frozen=True, slots=True)
class Ppo:
    """-min(rA, clip(r, 1-clip_low, 1+clip_high) A) (Schulman et al. 2017; asymmetric clip: Yu et al. 2025,
    DAPO).

    Gradient 0 if (A>0, r>1+clip_high) or (A<0, r<1-clip_low), else -rA: aware of the sign of A, so a bad
    token whose probability exploded keeps its restoring gradient. `dual_clip` c > 1 takes that away where
    A<0 and r>c; 0 = off. `ratio_cap` > 1+clip_high bounds r before the unclipped term (INTELLECT-2); 0 = off.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    ratio_cap: float = 0.0
    anchor: Anchor = "sampler"
    ratio_level: RatioLevel = "token"

    def __post_init__(self) -> None:
        _positive(clip_low=self.clip_low, clip_high=self.clip_high)
        if self.clip_low >= 1:
            raise GrpoMathError(
                f"clip_low must be < 1 (the lower ratio bound is 1 - clip_low), got {self.clip_low}"
            )
        if self.dual_clip and self.dual_clip <= 1:
            raise GrpoMathError(f"dual_clip must be > 1, or 0 for off, got {self.dual_clip}")
        if self.ratio_cap and self.ratio_cap <= 1:
            raise GrpoMathError(f"ratio_cap must be > 1, or 0 for off, got {self.ratio_cap}")

    @property
    def holds_sampler_ratio(self) -> bool:
        return self.anchor == "sampler"

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        advantages = tokens.advantages
        ratio = log_weight(tokens, self.anchor, self.ratio_level).exp()
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages
        free = (ratio.clamp(max=self.ratio_cap) if self.ratio_cap else ratio) * advantages
        losses = -torch.minimum(free, clipped)
        if self.dual_clip:
            bounded = torch.minimum(losses, -self.dual_clip * advantages)
            losses = torch.where(advantages < 0, bounded, losses)
        return losses


@dataclass(frozen=True, slots=True)
class Gspo:
    """Ppo on the row's ratio s = exp(mean_t(lp - b)), one value for every token (Zheng et al. 2025)."""

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    anchor: Anchor = "sampler"

    def __post_init__(self) -> None:
        Ppo(clip_low=self.clip_low, clip_high=self.clip_high)

    @property
    def holds_sampler_ratio(self) -> bool:
        return self.anchor == "sampler"

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        return Ppo(self.clip_low, self.clip_high, anchor=self.anchor, ratio_level="row")(tokens)


@dataclass(frozen=True, slots=True)
class ImportanceSampling:
    """-rA. Gradient -rA, unbounded: for data that is on policy or nearly so."""

    holds_sampler_ratio: ClassVar[bool] = True

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        return -log_ratio(tokens.trainer_logprobs, tokens.sampler_logprobs).exp() * tokens.advantages


@dataclass(frozen=True, slots=True)
class Cispo:
    """-sg(clip(r, cap_low, cap_high)) A lp. Gradient -clip(r) A, never 0 (MiniMax-M1 2025). The caps are
    absolute."""

    cap_low: float = 0.0
    cap_high: float = 5.0
    anchor: Anchor = "sampler"
    ratio_level: RatioLevel = "token"

    def __post_init__(self) -> None:
        if not 0 <= self.cap_low < 1 < self.cap_high:
            raise GrpoMathError(
                f"0 <= cap_low < 1 < cap_high, got {self.cap_low}, {self.cap_high}: ratio bounds"
            )

    @property
    def holds_sampler_ratio(self) -> bool:
        return self.anchor == "sampler"

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        ratio = log_weight(tokens, self.anchor, self.ratio_level).exp()
        weight = ratio.clamp(self.cap_low, self.cap_high).detach()
        return -weight * tokens.advantages * tokens.trainer_logprobs


@dataclass(frozen=True, slots=True)
class Dro:
    """-(lp A - beta/2 (lp - b)^2). Gradient -A + beta (lp - b): no ratio, a quadratic pull to the sampler
    (Tinker)."""

    beta: float = 0.05
    holds_sampler_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _positive(beta=self.beta)

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        drift = log_ratio(tokens.trainer_logprobs, tokens.sampler_logprobs)
        return -(tokens.trainer_logprobs * tokens.advantages - 0.5 * self.beta * drift**2)


@dataclass(frozen=True, slots=True)
class CrossEntropy:
    """-A lp with A used as a weight (1 for SFT). Gradient -A; no sampler is involved."""

    holds_sampler_ratio: ClassVar[bool] = True

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        return -tokens.advantages * tokens.trainer_logprobs


@dataclass(frozen=True, slots=True)
class Sapo:
    """-A 4/tau sigmoid(tau (r - 1)), tau by the sign of A: a smooth gate instead of a clip (Qwen 2025)."""

    tau_positive: float = 1.0
    tau_negative: float = 1.05
    anchor: Anchor = "sampler"
    ratio_level: RatioLevel = "token"

    def __post_init__(self) -> None:
        _positive(tau_positive=self.tau_positive, tau_negative=self.tau_negative)

    @property
    def holds_sampler_ratio(self) -> bool:
        return self.anchor == "sampler"

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        ratio = log_weight(tokens, self.anchor, self.ratio_level).exp()
        tau = torch.where(tokens.advantages > 0, self.tau_positive, self.tau_negative).to(ratio.dtype)
        return -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * tokens.advantages


@dataclass(frozen=True, slots=True)
class Dppo:
    """-keep r A + pull (lp - b)^2; a token is dropped where A>0 and its probability rose by more than
    max_rise, or A<=0 and it fell by more than max_fall. Probability differences, not ratios: rare tokens
    may move freely (prime-rl)."""

    max_rise: float = 0.2
    max_fall: float = 0.2
    pull: float = 1e-3
    holds_sampler_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _positive(max_rise=self.max_rise, max_fall=self.max_fall)

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        log_r = log_ratio(tokens.trainer_logprobs, tokens.sampler_logprobs)
        moved = _probability_change(tokens)
        drop = torch.where(tokens.advantages > 0, moved > self.max_rise, moved < -self.max_fall)
        return torch.where(drop, 0.0, -tokens.advantages * log_r.exp()) + self.pull * log_r**2


@dataclass(frozen=True, slots=True)
class Ipo:
    """Dppo with a symmetric mask: a token is dropped where its probability moved by more than max_move
    either way."""

    max_move: float = 0.3
    pull: float = 1e-3
    holds_sampler_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _positive(max_move=self.max_move)

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        log_r = log_ratio(tokens.trainer_logprobs, tokens.sampler_logprobs)
        drop = _probability_change(tokens).abs() > self.max_move
        return torch.where(drop, 0.0, -tokens.advantages * log_r.exp()) + self.pull * log_r**2


def _probability_change(tokens: TrainedTokens) -> Tensor:
    """[N] trainer probability - sampler probability, detached; 0 where the sampler gave none."""
    known = torch.isfinite(tokens.sampler_logprobs)
    change = tokens.trainer_logprobs.exp() - tokens.sampler_logprobs.exp()
    return torch.where(known, change, 0.0).detach()


@dataclass(frozen=True, slots=True)
class Decoupled:
    """w Ppo(r = exp(lp - o)), w = sg(exp(o - b)) (AReaL, Fu et al. 2025). For minibatch reuse at small
    staleness.

    Tokens with w outside [weight_low, weight_cap] are dropped (`clamp_weight` keeps them at the bound), and
    stay in the denominator. `drop_positive_only` drops only where A>0 and so keeps the restoring gradient
    on bad tokens.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    weight_cap: float = 5.0
    weight_low: float = 0.0
    clamp_weight: bool = False
    drop_positive_only: bool = False
    holds_sampler_ratio: ClassVar[bool] = True
    anchor: ClassVar[Anchor] = "proximal"

    def __post_init__(self) -> None:
        Ppo(self.clip_low, self.clip_high)
        if not 0 <= self.weight_low < 1 <= self.weight_cap:
            raise GrpoMathError(
                f"0 <= weight_low < 1 <= weight_cap, got {self.weight_low}, {self.weight_cap}: "
                "1 is the on-policy weight"
            )

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        proximal = _anchor_logprobs(tokens, "proximal")
        weight = log_ratio(proximal, tokens.sampler_logprobs).detach().exp()
        if self.clamp_weight:
            weight = weight.clamp(self.weight_low, self.weight_cap)
        else:
            drop = (weight > self.weight_cap) | (weight < self.weight_low)
            drop = drop & (tokens.advantages > 0) if self.drop_positive_only else drop
            weight = weight.masked_fill(drop, 0.0)
        return Ppo(self.clip_low, self.clip_high, anchor="proximal")(tokens) * weight


@dataclass(frozen=True, slots=True)
class Vespo:
    """-phi(w) A lp with phi = sg(exp(lambda + k log w - lambda w)), w the row's product of ratios (TRL
    `vespo`)."""

    k_positive: float = 2.0
    lambda_positive: float = 3.0
    k_negative: float = 3.0
    lambda_negative: float = 2.0
    anchor: Anchor = "sampler"

    @property
    def holds_sampler_ratio(self) -> bool:
        return self.anchor == "sampler"

    @torch.no_grad()
    def _weights(self, tokens: TrainedTokens) -> Tensor:
        log_r = log_ratio(tokens.trainer_logprobs, _anchor_logprobs(tokens, self.anchor))
        log_w = tokens.spread_over_rows(tokens.row_sum(log_r)).clamp(math.log(1e-8), MAX_ABS_LOG_RATIO)
        positive = tokens.advantages >= 0
        k = torch.where(positive, self.k_positive, self.k_negative).to(log_w.dtype)
        lam = torch.where(positive, self.lambda_positive, self.lambda_negative).to(log_w.dtype)
        return torch.exp(lam + k * log_w - lam * log_w.exp()).nan_to_num(0.0, 0.0, 0.0)

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        return -self._weights(tokens) * tokens.advantages * tokens.trainer_logprobs
