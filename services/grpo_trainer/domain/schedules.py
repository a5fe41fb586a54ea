"""The learning rate over the steps of a run. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

CONSTANT: Final = "constant"
LINEAR: Final = "linear"
COSINE: Final = "cosine"
SCHEDULES: Final = (CONSTANT, COSINE, LINEAR)
"""Names are an interface; their curves are those of transformers' `get_scheduler`."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A curve over a run of `steps` optimizer steps, 0 for a run without a limit, whose rate cannot fall.

    The first warmup_steps rise evenly towards the full rate, which the step after them has; none has a rate
    of 0, because a version that equals the one before proves no reload. After that the rate stays, or falls
    towards min_fraction of the full rate, which the step after the last one would have.
    """

    name: str
    steps: int
    warmup_steps: int
    min_fraction: float

    @property
    def is_flat(self) -> bool:
        """Every step has the full rate."""
        return self.name == CONSTANT and self.warmup_steps == 0

    def wrong(self) -> list[str]:
        """What cannot be, in words; empty where all is well."""
        wrong = []
        if self.name not in SCHEDULES:
            wrong.append(f"lr_schedule {self.name!r} does not exist; known: {', '.join(SCHEDULES)}")
        if self.name in (LINEAR, COSINE) and self.steps == 0:
            wrong.append(
                f"lr_schedule {self.name} needs a number of steps to fall over, and steps is 0 (until the "
                f"run is stopped): say steps, or lr_schedule={CONSTANT}"
            )
        if self.warmup_steps < 0 or (self.steps and self.warmup_steps >= self.steps):
            wrong.append(
                f"warmup_steps must be >= 0 and below steps ({self.steps}), got {self.warmup_steps}: "
                "some step must have the full rate"
            )
        if not 0 <= self.min_fraction <= 1:
            wrong.append(f"min_lr_fraction must be in [0, 1], got {self.min_fraction:g}")
        if self.name == CONSTANT and self.min_fraction > 0:
            wrong.append(
                f"min_lr_fraction is {self.min_fraction:g} but a constant rate falls to nothing less: "
                f"say lr_schedule={LINEAR} or {COSINE}, or leave it out"
            )
        return wrong

    def factor(self, done: int) -> float:
        """Share of the full rate that a step has before which `done` steps were taken."""
        if done < self.warmup_steps:
            return (done + 1) / (self.warmup_steps + 1)
        if self.name == CONSTANT:
            return 1.0
        progress = min(1.0, (done - self.warmup_steps) / (self.steps - self.warmup_steps))
        left = 1.0 - progress if self.name == LINEAR else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.min_fraction + (1.0 - self.min_fraction) * left
