"""Held-out sets and policies to play on them: success by task is logit-normal, a changed policy scatters."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from upcycle.gate.outcomes import Outcome, Outcomes, TaskOutcomes

Rates = NDArray[np.float64]
Generator = np.random.Generator
SCATTER: Final = 0.5  # logits: what training changes from task to task
_NODES: Final = np.linspace(-7, 7, 281)
_WEIGHTS: Final = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()


def rates_of(logits: NDArray[Any]) -> Rates:
    """Success from logits."""
    return np.asarray(1 / (1 + np.exp(-logits)), dtype=np.float64)


@functools.lru_cache(maxsize=4096)
def centre(mean: float, spread: float) -> float:
    """The mean logit of tasks that are solved in `mean` of cases and whose logits spread so."""
    low, high = -25.0, 25.0
    for _ in range(60):
        middle = (low + high) / 2
        below = float(rates_of(middle + spread * _NODES) @ _WEIGHTS) < mean
        low, high = (middle, high) if below else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class Population:
    """A drawn held-out set. family: index by task; ease: logits of head, less their mean."""

    family: NDArray[np.int_]
    ease: Rates
    mean: float
    spread: float

    @classmethod
    def drawn(
        cls, rng: Generator, *, tasks: int = 120, families: int = 4, mean: float = 0.5, spread: float = 1.5
    ) -> "Population":
        """Tasks go round the families."""
        return cls(np.arange(tasks) % families, spread * rng.normal(size=tasks), mean, spread)

    def head(self) -> Rates:
        """Success of head, by task."""
        return rates_of(centre(self.mean, self.spread) + self.ease)

    def changed(self, rng: Generator, gain: float, scatter: float = SCATTER) -> Rates:
        """Success of a version whose mean over all such tasks is `gain` above that of head."""
        mean = round(min(0.999, max(0.001, self.mean + gain)), 6)
        middle = centre(mean, round(math.hypot(self.spread, scatter), 6))
        return rates_of(middle + self.ease + scatter * rng.normal(size=len(self.ease)))


def played(rng: Generator, rates: Rates, attempts: int) -> NDArray[np.int_]:
    """Outcomes by task and attempt."""
    return (rng.random((len(rates), attempts)) < rates[:, None]).astype(int)


def outcomes_of(
    family: NDArray[np.int_],
    candidate: NDArray[np.int_],
    head: NDArray[np.int_],
    lost: NDArray[np.bool_] | None = None,
) -> Outcomes:
    """For `decide`. lost: attempts of the candidate that infrastructure lost."""
    ours: list[list[Outcome]] = candidate.tolist()
    if lost is not None:
        ours = [
            [None if gone else y for y, gone in zip(*row, strict=True)]
            for row in zip(ours, lost, strict=True)
        ]
    rows = zip(family.tolist(), ours, head.tolist(), strict=True)
    return Outcomes(
        tuple(TaskOutcomes(f"t{i}", f"f{f}", tuple(c), tuple(h)) for i, (f, c, h) in enumerate(rows))
    )


def seeded(cell: str) -> Generator:
    """A generator of its own for each cell, whatever else is measured."""
    return np.random.default_rng(list(cell.encode()))


Draw = Callable[[Generator], bool]
