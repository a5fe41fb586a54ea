"""The whole objective of a step: loss, weights, penalty, bonus, aggregation; what does not fit together is
refused.

`build_objective` is the one way from names and numbers (a training configuration) to something that can be
called.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import torch
from torch import Tensor

from grpo_math import losses
from grpo_math.aggregation import AGGREGATIONS, DEFAULT_AGGREGATION, StepTotals, token_weights
from grpo_math.corrections import OffPolicyRowMask, SamplerWeight
from grpo_math.divergence import KL_KINDS, KL_PLACEMENTS, kl_credit, kl_estimate
from grpo_math.errors import GrpoMathError, UnsoundCombination, unknown_name
from grpo_math.losses import Anchor, RatioLevel, TokenLoss, log_weight
from grpo_math.tokens import TrainedTokens

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
DECISION_SHARE: Final = 0.2
"""Of the trained tokens, the least certain ones: those at which a policy decides."""


@dataclass(frozen=True, slots=True)
class KlPenalty:
    """coefficient * KL(trainer || reference) per token; `bias_corrected` multiplies by the ratio
    (DeepSeek-V3.2).

    ratio_level "row": by the ratio of the row's geometric mean, as a loss with that ratio needs it.
    placement "loss": added to every token's loss. "reward": taken from every token's advantage, relative to
    the step's mean, under the weights before the first update (`credited`).
    """

    coefficient: float
    kind: str = "k3"
    bias_corrected: bool = False
    placement: str = "loss"
    ratio_level: RatioLevel = "token"

    def __post_init__(self) -> None:
        if self.kind not in KL_KINDS:
            raise unknown_name("KL estimator", self.kind, KL_KINDS)
        if self.placement not in KL_PLACEMENTS:
            raise unknown_name("KL placement", self.placement, KL_PLACEMENTS)
        if not self.coefficient > 0:
            raise GrpoMathError(f"kl_coefficient must be > 0, or left out, got {self.coefficient}")
        if self.bias_corrected and self.placement == "reward":
            raise UnsoundCombination(
                "kl_bias_correction is a factor of the loss; with the KL in the reward the loss's own ratio "
                "already weighs it: leave it out"
            )

    def credited(self, advantages: Tensor, divergence: Tensor, mean: float) -> Tensor:
        """[N] advantages with the KL taken off. divergence: [N]; mean: over the step's trained tokens."""
        return advantages + kl_credit(divergence, self.coefficient, mean).to(advantages.dtype)

    def __call__(self, tokens: TrainedTokens) -> Tensor:
        if tokens.reference_logprobs is None:
            raise GrpoMathError("a KL penalty needs reference log-probabilities, and the tokens carry none")
        penalty = kl_estimate(tokens.trainer_logprobs, tokens.reference_logprobs, self.kind)
        if self.bias_corrected:
            anchor: Anchor = "sampler" if tokens.proximal_logprobs is None else "proximal"
            penalty = penalty * log_weight(tokens, anchor, self.ratio_level).exp()
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
    def needs_reference(self) -> bool:
        """True where the frozen reference policy must score the tokens of the step."""
        return self.kl is not None

    @property
    def kl_in_reward(self) -> bool:
        """True where the divergence changes advantages, and so must be known before the first backward."""
        return self.kl is not None and self.kl.placement == "reward"

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
        if self.kl is not None and self.kl.placement == "loss":
            values = values + self.kl(tokens)
        total = (values * token_weights(self.aggregation, tokens, totals)).sum()
        if self.entropy_bonus:
            total = total - self.entropy_bonus * self._entropies(tokens).sum() / totals.num_tokens
        return total

    def _uncertain(self, tokens: TrainedTokens, totals: StepTotals) -> Tensor:
        if totals.entropy_threshold is None:
            raise GrpoMathError("top_entropy < 1 needs the step's entropy_threshold in its totals")
        entropies = self._entropies(tokens).detach().float()  # as the threshold: its own token is trained
        return (entropies >= totals.entropy_threshold).to(tokens.advantages.dtype)

    def _entropies(self, tokens: TrainedTokens) -> Tensor:
        if tokens.entropies is None:
            raise GrpoMathError("this objective reads entropies, and the tokens carry none")
        return tokens.entropies


def entropy_threshold(entropies: Tensor, top_entropy: float) -> float:
    """The entropy in nats that the `top_entropy` share of tokens reaches: a quantile over the step's [N]
    entropies."""
    return float(torch.quantile(entropies.detach().float(), 1 - top_entropy))


def decision_entropy(entropies: Tensor) -> float:
    """Mean over the fifth of the tokens where the policy is least certain, in nats; entropies [N], N > 0.

    The other tokens are templates and the ends of words: certain from the start, they hide whether the policy
    still decides anything (Wang et al. 2025, "Beyond the 80/20 rule", arXiv:2506.01939)."""
    values = entropies.detach().float()
    return float(values.topk(max(1, math.ceil(DECISION_SHARE * values.numel()))).values.mean())


def build_loss(
    name: str, parameters: Mapping[str, float] | None = None, *, proximal_anchor: bool = False
) -> TokenLoss:
    """The named loss with these parameters. Raises UnknownName for either name, GrpoMathError for a bad
    value.

    proximal_anchor: the ratio is to the trainer's weights before the first update, not to the sampler.
    """
    if name not in LOSSES:
        raise unknown_name("loss", name, LOSSES)
    kind = LOSSES[name]
    numeric = {f.name: f.default for f in fields(kind) if isinstance(f.default, (bool, float))}
    values: dict[str, Any] = {}
    for key, value in (parameters or {}).items():
        if key not in numeric:
            raise unknown_name(f"parameter of loss {name!r}", key, [*numeric, *_OBJECTIVE_KEYS])
        values[key] = _switch(key, {key: value}) if isinstance(numeric[key], bool) else float(value)
    if proximal_anchor:
        if "anchor" not in {f.name for f in fields(kind)}:
            raise UnsoundCombination(
                f"loss {name!r} has no anchor to choose; proximal_anchor fits "
                f"{', '.join(n for n, k in LOSSES.items() if 'anchor' in {f.name for f in fields(k)})}"
            )
        values["anchor"] = "proximal"
    loss: TokenLoss = kind(**values)
    return loss


def _switch(name: str, values: Mapping[str, float]) -> bool:
    value = values.get(name, 0.0)
    if value not in (0, 1):
        raise GrpoMathError(f"{name} must be 0 (off), or 1, got {value}")
    return bool(value)


_OBJECTIVE_KEYS: Final = (
    "kl_coefficient",
    "kl_bias_correction",
    "entropy_bonus",
    "off_policy_row_limit",
    "top_entropy",
    "proximal_anchor",
    "sampler_weight_high",
    "sampler_weight_low",
    "sampler_weight_drop",
    "sampler_weight_rows",
)
"""Parameters of the objective itself, beside those of its loss."""


@dataclass(frozen=True, slots=True)
class KlChoice:
    """What a training configuration says about its KL in words; read where it has a kl_coefficient."""

    estimator: str = "k3"
    placement: str = "loss"


def build_objective(
    loss: str = DEFAULT_LOSS,
    parameters: Mapping[str, float] | None = None,
    *,
    aggregation: str = DEFAULT_AGGREGATION,
    kl: KlChoice | None = None,
) -> Objective:
    """An objective from a training configuration's names and numbers.

    parameters: the loss's own, and of the objective: kl_coefficient, kl_bias_correction (0 or 1),
    entropy_bonus, off_policy_row_limit, top_entropy; proximal_anchor (0 or 1), and with it a sampler weight:
    sampler_weight_high (TIS: truncate there), _low, _drop (1: drop outside instead, MIS), _rows (1: product
    over the row). Anything else is an error that names the nearest valid parameter. What a run may ask for is
    decided by `upcycle.run_config.loss_refusals`, before; these checks hold for callers without a run.
    """
    given = dict(parameters or {})
    own: dict[str, float] = {key: float(given.pop(key)) for key in _OBJECTIVE_KEYS if key in given}
    built = build_loss(loss, given, proximal_anchor=_switch("proximal_anchor", own))
    limit = own.get("off_policy_row_limit")
    return Objective(
        loss=built,
        aggregation=aggregation,
        sampler_weight=_sampler_weight(own),
        row_mask=None if limit is None else OffPolicyRowMask(limit),
        kl=_kl_penalty(own, kl or KlChoice()),
        entropy_bonus=own.get("entropy_bonus", 0.0),
        top_entropy=own.get("top_entropy", 1.0),
    )


def _sampler_weight(own: Mapping[str, float]) -> SamplerWeight | None:
    if "sampler_weight_high" not in own:
        idle = [key for key in own if key.startswith("sampler_weight_")]
        if idle:
            raise UnsoundCombination(f"{', '.join(idle)} without sampler_weight_high: nothing reads it")
        return None
    return SamplerWeight(
        level="row" if _switch("sampler_weight_rows", own) else "token",
        action="drop" if _switch("sampler_weight_drop", own) else "truncate",
        high=own["sampler_weight_high"],
        low=own.get("sampler_weight_low", 0.0),
    )


def _kl_penalty(own: Mapping[str, float], choice: KlChoice) -> KlPenalty | None:
    coefficient = own.get("kl_coefficient", 0.0)
    if coefficient:
        corrected = _switch("kl_bias_correction", own)
        return KlPenalty(coefficient, choice.estimator, corrected, choice.placement)
    if choice != KlChoice() or "kl_bias_correction" in own:
        raise UnsoundCombination("a KL estimator, placement or correction without kl_coefficient is not read")
    return None
