"""The whole objective of a step: loss, weights, penalty, bonus, aggregation; what does not fit together is
refused.

`build_objective` is the one way from names and numbers (a training configuration) to something that can be
called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import torch
from torch import Tensor

from grpo_math import losses
from grpo_math.aggregation import AGGREGATIONS, DEFAULT_AGGREGATION, StepTotals, token_weights
from grpo_math.corrections import OffPolicyRowMask, SamplerWeight
from grpo_math.divergence import KL_KINDS, kl_estimate
from grpo_math.errors import GrpoMathError, UnsoundCombination, unknown_name
from grpo_math.losses import TokenLoss
from grpo_math.tokens import TrainedTokens, log_ratio

LOSSES: Final[dict[str, type]] = {
    "ppo": losses.Ppo,
    "importance_sampling": losses.ImportanceSampling,
    "cispo": losses.Cispo,
    "gspo": losses.Gspo,
    "dro": losses.Dro,
    "sapo": losses.Sapo,
    "dppo": losses.Dppo,
    "ipo": losses.Ipo,
    "decoupled": losses.Decoupled,
    "vespo": losses.Vespo,
    "cross_entropy": losses.CrossEntropy,
}
"""Token losses by the name that a training configuration uses."""

DEFAULT_LOSS: Final = "ppo"


@dataclass(frozen=True, slots=True)
class KlPenalty:
    """coefficient * KL(trainer || reference) per token; `bias_corrected` multiplies by the ratio
    (DeepSeek-V3.2)."""

    coefficient: float
    kind: str = "k3"
    bias_corrected: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KL_KINDS:
            raise unknown_name("KL estimator", self.kind, KL_KINDS)

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        if tokens.reference_logprobs is None:
            raise GrpoMathError("a KL penalty needs reference log-probabilities, and the tokens carry none")
        penalty = kl_estimate(tokens.trainer_logprobs, tokens.reference_logprobs, self.kind)
        if self.bias_corrected:
            anchor = tokens.proximal_logprobs
            anchor = tokens.sampler_logprobs if anchor is None else anchor
            penalty = penalty * log_ratio(tokens.trainer_logprobs, anchor).exp()
        return self.coefficient * penalty


@dataclass(frozen=True, slots=True)
class Objective:
    """Sum of weighted token losses of a microbatch; adding the sums of all microbatches gives the step's
    loss.

    top_entropy: share of the step's tokens, those of highest entropy, that the policy loss trains; 1 = all.
    The others stay in the denominator. Their threshold arrives in StepTotals, so that it is one value for
    the step.
    """

    loss: TokenLoss
    aggregation: str = DEFAULT_AGGREGATION
    sampler_weight: SamplerWeight | None = None
    row_mask: OffPolicyRowMask | None = None
    kl: KlPenalty | None = None
    entropy_bonus: float = 0.0
    top_entropy: float = 1.0

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise unknown_name("aggregation", self.aggregation, AGGREGATIONS)
        if not 0 < self.top_entropy <= 1:
            raise GrpoMathError(f"top_entropy is a share in (0, 1], got {self.top_entropy}")
        if self.sampler_weight is not None and self.loss.holds_sampler_ratio:
            raise UnsoundCombination(
                f"a sampler weight on {type(self.loss).__name__} would count the sampler twice: its ratio "
                "already holds it, or it has none; anchor the loss at the proximal policy, or drop the weight"
            )

    @property
    def needs_proximal(self) -> bool:
        """True where the trainer must compute log-probabilities of the whole step before its first update."""
        return getattr(self.loss, "anchor", "sampler") == "proximal" or self.sampler_weight is not None

    @property
    def needs_entropy_gradient(self) -> bool:
        return self.entropy_bonus != 0.0

    def __call__(self, tokens: TrainedTokens, totals: StepTotals) -> Tensor:
        """Scalar: this microbatch's part of the step's loss. Zero tokens give a zero that still has a
        gradient."""
        values = self.loss(tokens)
        if self.row_mask is not None:
            values = values * self.row_mask(tokens)
        if self.top_entropy < 1:
            values = values * self._uncertain(tokens, totals)
        if self.sampler_weight is not None:
            values = values * self.sampler_weight(tokens)
        if self.kl is not None:
            values = values + self.kl(tokens)
        total = (values * token_weights(self.aggregation, tokens, totals)).sum()
        if self.entropy_bonus:
            total = total - self.entropy_bonus * self._entropies(tokens).sum() / totals.num_tokens
        return total

    def _uncertain(self, tokens: TrainedTokens, totals: StepTotals) -> Tensor:
        if totals.entropy_threshold is None:
            raise GrpoMathError("top_entropy < 1 needs the step's entropy_threshold in its totals")
        return (self._entropies(tokens).detach() >= totals.entropy_threshold).to(tokens.advantages.dtype)

    def _entropies(self, tokens: TrainedTokens) -> Tensor:
        if tokens.entropies is None:
            raise GrpoMathError("this objective reads entropies, and the tokens carry none")
        return tokens.entropies


def entropy_threshold(entropies: Tensor, top_entropy: float) -> float:
    """The entropy in nats that the `top_entropy` share of tokens reaches: a quantile over the step's [N]
    entropies."""
    return float(torch.quantile(entropies.detach().float(), 1 - top_entropy))


def build_loss(name: str, parameters: Mapping[str, float] | None = None) -> TokenLoss:
    """The named loss with these parameters. Raises UnknownName for either name, GrpoMathError for a bad
    value."""
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    kind = LOSSES[name]
    numeric = {f.name: f.default for f in fields(kind) if isinstance(f.default, (bool, float))}
    values: dict[str, float | bool] = {}
    for key, value in (parameters or {}).items():
        if key not in numeric:
            raise unknown_name(f"parameter of loss {name!r}", key, numeric)
        values[key] = bool(value) if isinstance(numeric[key], bool) else float(value)
    loss: TokenLoss = kind(**values)
    return loss


_OBJECTIVE_KEYS: Final = ("kl_coefficient", "entropy_bonus", "off_policy_row_limit", "top_entropy")


def build_objective(
    loss: str = DEFAULT_LOSS,
    parameters: Mapping[str, float] | None = None,
    *,
    aggregation: str = DEFAULT_AGGREGATION,
) -> Objective:
    """An objective from a training configuration's names and numbers.

    parameters: the loss's own, and of the objective: kl_coefficient, entropy_bonus, off_policy_row_limit,
    top_entropy. Anything else is an error that names the nearest valid parameter.
    """
    given = dict(parameters or {})
    own = {key: float(given.pop(key)) for key in _OBJECTIVE_KEYS if key in given}
    built = build_loss(loss, given)
    limit, kl = own.get("off_policy_row_limit"), own.get("kl_coefficient", 0.0)
    return Objective(
        loss=built,
        aggregation=aggregation,
        row_mask=None if limit is None else OffPolicyRowMask(limit),
        kl=KlPenalty(kl) if kl else None,
        entropy_bonus=own.get("entropy_bonus", 0.0),
        top_entropy=own.get("top_entropy", 1.0),
    )
