"""The learning rate over the steps of a run. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

CONSTANT: Final = "constant"
LINEAR: Final = "linear"
COSINE: Final = "cosine"
"""Names are an interface (run_config lists them); their curves are those of transformers' `get_scheduler`."""


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

    def factor(self, done: int) -> float:
        """Share of the full rate that a step has before which `done` steps were taken."""
        if done < self.warmup_steps:
            return (done + 1) / (self.warmup_steps + 1)
        if self.name == CONSTANT:
            return 1.0
        progress = min(1.0, (done - self.warmup_steps) / (self.steps - self.warmup_steps))
        left = 1.0 - progress if self.name == LINEAR else 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.min_fraction + (1.0 - self.min_fraction) * left
