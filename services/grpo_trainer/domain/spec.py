"""What a run asks of the trainer, with every default filled in."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from grpo_trainer.domain.errors import InvalidTrainingSpec

MAX_TRAJECTORIES_PER_STEP = 2048
"""The ids of a step's trajectories travel in one event of at most 256 KB."""


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """One training run: G = group_size rollouts of P = prompts_per_step tasks make a batch."""

    run_id: str
    model: str
    group_size: int
    steps: int = 100
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

    def __post_init__(self) -> None:
        at_least_one = ("steps", "prompts_per_step", "checkpoint_every_steps")
        wrong = [
            f"{name} must be >= 1, got {getattr(self, name)}"
            for name in at_least_one
            if getattr(self, name) < 1
        ]
        positive = ("learning_rate", "max_grad_norm")
        wrong += [
            f"{n} must be finite and > 0, got {getattr(self, n):g}"
            for n in positive
            if not _positive(getattr(self, n))
        ]
        betas = ("adam_beta1", "adam_beta2")
        wrong += [
            f"{n} must be in [0, 1), got {getattr(self, n):g}" for n in betas if not 0 <= getattr(self, n) < 1
        ]
        if self.group_size < 2:
            wrong.append(
                f"group_size must be >= 2, got {self.group_size}: one rollout has nothing to be compared with"
            )
        if self.max_staleness < 0:
            wrong.append(f"max_staleness must be >= 0, got {self.max_staleness}")
        if self.weight_decay < 0:
            wrong.append(f"weight_decay must be >= 0, got {self.weight_decay:g}")
        if self.prompts_per_step * self.group_size > MAX_TRAJECTORIES_PER_STEP:
            wrong.append(
                f"prompts_per_step * group_size is {self.prompts_per_step * self.group_size}, "
                f"limit {MAX_TRAJECTORIES_PER_STEP}: lower one of them"
            )
        if wrong:
            raise InvalidTrainingSpec(f"run {self.run_id}: " + "; ".join(wrong))

    @property
    def min_members(self) -> int:
        """Fewest survivors that a group may be trained with: max(2, G/2)."""
        return max(2, math.ceil(self.group_size / 2))

    def digest(self) -> str:
        """Identity of the configuration: sha256 of its canonical JSON."""
        plain = {**asdict(self), "loss_config": dict(self.loss_config)}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0
