"""Two-sided intervals of one evaluation and of a difference, clustered by task.

A mean, and a mean of paired differences: percentile bootstrap over tasks, widened by Student's t, because few
tasks know little of their own spread: without it 2 tasks miss the truth in 4 of 10 intervals, and 10 in 1 of
10. The promotion gate has its own, one-sided bound. A success rate: Wilson's interval at the effective number
of attempts, because resampling 20 solved tasks of 20 would say 100 % with certainty.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.statistics.paired import normal_quantile, resampled, stretched, wilson
from upcycle.statistics.student import t_quantile

CONFIDENCE: Final = 0.95
SEED: Final = 0
MAX_REPS: Final = 4000
_MIN_REPS: Final = 500
_MAX_DRAWS: Final = 4_000_000  # tasks × repetitions: a report of 100,000 tasks takes seconds


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval; None: one task, or tasks without any spread, say nothing of other tasks."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class TaskTotal:
    """The sum over the attempts at one task, and how many there were, at least 1."""

    total: float
    attempts: int


def mean_estimate(
    tasks: Sequence[TaskTotal],
    confidence: float = CONFIDENCE,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """The mean over all attempts. bounds: between which each attempt lies. Raises ValueError without a
    task."""
    value = _ratio(tasks)
    if len(tasks) < 2 or len({task.total / task.attempts for task in tasks}) == 1:
        return Estimate(value)
    means = resampled(tasks, _ratio, seed=SEED, reps=_reps(len(tasks)))
    rank = max(0, math.ceil((1 - confidence) / 2 * len(means)) - 1)
    tail = (1 + confidence) / 2
    wider = t_quantile(tail, len(tasks) - 1) / normal_quantile(tail)
    ends = (stretched(value, means[at], len(tasks)) for at in (rank, len(means) - 1 - rank))
    low, high = (value + wider * (end - value) for end in ends)
    return Estimate(value, Interval(max(bounds[0], low), min(bounds[1], high)))


def difference_estimate(
    differences: Sequence[float],
    confidence: float = CONFIDENCE,
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """The mean of one difference per task. bounds: between which each lies. Raises ValueError without a
    task."""
    return mean_estimate([TaskTotal(difference, 1) for difference in differences], confidence, bounds)


def rate_estimate(tasks: Sequence[TaskTotal], confidence: float = CONFIDENCE) -> Estimate:
    """The share of successes of all attempts; `total` counts successes.

    The effective number of attempts is what independent attempts would need for the same variance between
    tasks (Korn and Graubard 1998): at most the attempts, and the tasks where no task differs at 0 % or 100 %.
    Raises ValueError without a task.
    """
    rate, attempts = _ratio(tasks), sum(task.attempts for task in tasks)
    if len(tasks) < 2:
        return Estimate(rate)
    residuals = math.fsum((task.total - rate * task.attempts) ** 2 for task in tasks)
    variance = residuals / attempts**2 * len(tasks) / (len(tasks) - 1)
    if rate in (0.0, 1.0):
        effective = float(len(tasks))
    else:
        effective = min(float(attempts), rate * (1 - rate) / variance) if variance else float(attempts)
    low, high = wilson(rate * effective, effective, normal_quantile((1 + confidence) / 2))
    return Estimate(rate, Interval(low, high))


def _ratio(tasks: Sequence[TaskTotal]) -> float:
    if not tasks:
        raise ValueError("no task was graded: there is no mean")
    return math.fsum(task.total for task in tasks) / sum(task.attempts for task in tasks)


def _reps(num_tasks: int) -> int:
    return min(MAX_REPS, max(_MIN_REPS, _MAX_DRAWS // num_tasks))
