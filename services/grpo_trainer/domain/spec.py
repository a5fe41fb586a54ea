"""What a run asks of the trainer, with every default filled in."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.schedules import CONSTANT, Schedule
from upcycle.run_config import ALL_LINEAR, refusals

_LATER_FIELDS = frozenset(
    {
        "lora_rank",
        "lora_alpha",
        "lora_targets",
        "aggregation",
        "kl_estimator",
        "kl_placement",
        "lr_schedule",
        "warmup_steps",
        "min_lr_fraction",
    }
)
"""Fields that the first version did not have. They enter a digest where they differ from their default, so
that runs which an older trainer began keep theirs."""


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """One training run: G = group_size rollouts of P = prompts_per_step tasks make a batch.

    What it may say is in run_config, which the planner asks as well."""

    run_id: str
    model: str
    group_size: int
    steps: int = 100
    """Optimizer steps; 0: until the run is stopped."""
    prompts_per_step: int = 16
    max_staleness: int = 4
    learning_rate: float = 1e-5
    max_grad_norm: float = 1.0
    loss: str = "ppo"
    advantage: str = "dr_grpo"
    loss_config: Mapping[str, float] = field(default_factory=dict)
    checkpoint_every_steps: int = 10
    seed: int = 0
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    held_out_taskset: str = ""
    """Name of the taskset that the promotion gate measures on; none of its tasks may train."""
    held_out_split: bool = False
    """The run draws from a held-out taskset: everything it samples is refused."""
    lora_rank: int = 0
    """0: all weights train; else adapters of this rank do, on a base that stays as it is."""
    lora_alpha: float = 0.0
    """Adapters are scaled by alpha / rank; 0: alpha is 2 * rank."""
    lora_targets: str = ALL_LINEAR
    """Layers with adapters: all-linear, or their names, comma-separated."""
    aggregation: str = ""
    """How token losses become one number; empty: token_mean, and turn_mean for the advantage m_grpo."""
    kl_estimator: str = "k3"
    """Of the divergence from the run's base policy; read where loss_config has a kl_coefficient."""
    kl_placement: str = "loss"
    """loss: the divergence is added to the loss; reward: it is taken from the advantages."""
    lr_schedule: str = CONSTANT
    """Curve of the learning rate over the steps: constant, linear or cosine."""
    warmup_steps: int = 0
    """First steps, during which the rate rises to learning_rate."""
    min_lr_fraction: float = 0.0
    """What linear and cosine fall towards, as a share of learning_rate."""

    def __post_init__(self) -> None:
        wrong = refusals(self, group_size=self.group_size)
        if wrong:
            raise InvalidTrainingSpec(f"run {self.run_id}: " + "; ".join(wrong))

    @property
    def has_limit(self) -> bool:
        """Whether the run ends by itself; else it trains until it is stopped."""
        return self.steps > 0

    def is_last(self, step: int) -> bool:
        """Whether the run is over with that step."""
        return self.has_limit and step >= self.steps

    @property
    def schedule(self) -> Schedule:
        """The learning rate over the run's steps."""
        return Schedule(self.lr_schedule, self.steps, self.warmup_steps, self.min_lr_fraction)

    @property
    def lora_scale(self) -> float:
        """What the product of the two adapter matrices is multiplied by: alpha / rank."""
        return self.lora_alpha / self.lora_rank if self.lora_alpha else 2.0

    @property
    def min_members(self) -> int:
        """Fewest survivors that a group may be trained with: max(2, G/2)."""
        return max(2, math.ceil(self.group_size / 2))

    def digest(self) -> str:
        """Identity of the configuration: sha256 of its canonical JSON."""
        plain = {**asdict(self), "loss_config": dict(self.loss_config)}
        for one in fields(self):
            if one.name in _LATER_FIELDS and plain[one.name] == one.default:
                del plain[one.name]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
