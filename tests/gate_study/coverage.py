"""How often printed intervals hold the truth."""

from collections.abc import Callable

import numpy as np
from tests.gate_study.population import Generator, Population, centre, played

from upcycle.statistics.intervals import Estimate, TaskTotal, difference_estimate, rate_estimate


def of_rate(tasks: int, attempts: int, mean: float, spread: float) -> Callable[[Generator], bool]:
    """The interval of a success rate, for the mean over all tasks of the kind."""
    centre(mean, spread)

    def draw(rng: Generator) -> bool:
        set_ = Population.drawn(rng, tasks=tasks, mean=mean, spread=spread)
        totals = played(rng, set_.head(), attempts).sum(axis=1).tolist()
        return _holds(rate_estimate([TaskTotal(total, attempts) for total in totals]), mean)

    return draw


def of_difference(tasks: int, attempts: int, mean: float, gain: float) -> Callable[[Generator], bool]:
    """The interval of a paired difference, for the mean over all tasks of the kind."""

    def draw(rng: Generator) -> bool:
        set_ = Population.drawn(rng, tasks=tasks, mean=mean)
        mine, other = played(rng, set_.changed(rng, gain), attempts), played(rng, set_.head(), attempts)
        differences = np.mean(mine - other, axis=1).tolist()
        return _holds(difference_estimate(differences, bounds=(-1, 1)), gain)

    return draw


def _holds(estimate: Estimate, truth: float) -> bool:
    ends = estimate.interval
    return ends is not None and ends.low <= truth <= ends.high
