"""Limits of numbers, one object per number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LARGEST: Final = 1e9
"""Bound of numbers that need none: what is beyond it is a mistake, and what is not finite too."""
MAX_GROUP_SIZE: Final = 1024
MAX_TRAJECTORIES_PER_STEP: Final = 2048
"""The ids of a step's trajectories travel in one event of at most 256 KB."""
MAX_TRAINABLE_GROUP: Final = 512
"""A group of an evaluation that may train travels with all its members in one event of at most 256 KB."""


@dataclass(frozen=True, slots=True)
class Limit:
    """From low to high. above: low itself does not fit; below: high itself does not. zero_is_off: 0 fits too,
    and switches it off. why: of the limit, where it is not obvious."""

    low: float = -LARGEST
    high: float = LARGEST
    above: bool = False
    below: bool = False
    zero_is_off: bool = False
    why: str = ""

    def holds(self, value: float) -> bool:
        """Whether the value fits. NaN compares false with everything, so it never does."""
        if self.zero_is_off and value == 0:
            return True
        is_low_enough = value < self.high if self.below else value <= self.high
        return is_low_enough and (value > self.low if self.above else value >= self.low)

    def refusal(self, name: str, value: float) -> str:
        """Thing, limit, value."""
        off = "0 (off), or " if self.zero_is_off else ""
        low, high = (">" if self.above else ">="), ("<" if self.below else "<=")
        why = f": {self.why}" if self.why else ""
        return f"{name} must be {off}{low} {self.low:g} and {high} {self.high:g}, got {value:g}{why}"


POSITIVE: Final = Limit(0, above=True)
NOT_NEGATIVE: Final = Limit(0)
ANY: Final = Limit()

LIMITS: Final = {
    "group_size": Limit(
        2, MAX_GROUP_SIZE, why="one rollout has nothing to be compared with, 8 is a good start"
    ),
    "steps": Limit(0, why="0 trains until the run is stopped"),
    "prompts_per_step": Limit(1, 65536),
    "max_staleness": Limit(0, 1000),
    "learning_rate": Limit(0, 10, above=True),
    "max_grad_norm": POSITIVE,
    "checkpoint_every_steps": Limit(1),
    "weight_decay": Limit(0, 10),
    "adam_beta1": Limit(0, 1, below=True),
    "adam_beta2": Limit(0, 1, below=True),
    "min_lr_fraction": Limit(0, 1),
    "lora_rank": Limit(0, 65536, why="0 trains all weights"),
    "lora_alpha": Limit(0, 1e6, why="0 is twice the rank"),
    "no_step_groups": Limit(0, why="0 is max(8 * prompts_per_step, 64)"),
}
"""Of a training configuration's numbers. warmup_steps depends on steps: see rules."""

GATE_LIMITS: Final = {
    "attempts": Limit(1, MAX_GROUP_SIZE),
    "confidence": Limit(0.5, 0.999999),
    "regression_margin": Limit(0, 1),
    "min_gain": Limit(-1, 1),
}
"""Of a promotion gate's numbers."""
