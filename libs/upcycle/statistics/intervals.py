"""Two-sided intervals of one evaluation and of a difference, clustered by task: all that are printed.

A mean, and a mean of paired differences: Student's t over tasks. A success rate: Wilson's interval with
Student's quantile at the effective number of attempts, because the spread of 20 solved tasks of 20 would say
100 % with certainty. `make gate-study` holds their coverage. The promotion gate's bounds are one-sided.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.statistics.paired import wilson
from upcycle.statistics.student import t_quantile

CONFIDENCE: Final = 0.95
_SPREAD_UNSEEN: Final = 1 / 16
"""Added to the sum of squared deviations: near 0 % and 100 % few tasks show too little of their spread.
Measured: without it 30 tasks of 16 attempts at 90 % are covered in .92 instead of .95."""


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
    value, error = _ratio(tasks), _error(tasks)
    if not 0 < error < math.inf:
        return Estimate(value)
    half = t_quantile((1 + confidence) / 2, len(tasks) - 1) * error
    return Estimate(value, Interval(max(bounds[0], value - half), min(bounds[1], value + half)))


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
    effective = float(len(tasks))
    if rate not in (0.0, 1.0):
        effective = min(float(attempts), rate * (1 - rate) / _error(tasks, _SPREAD_UNSEEN) ** 2)
    low, high = wilson(rate * effective, effective, t_quantile((1 + confidence) / 2, len(tasks) - 1))
    return Estimate(rate, Interval(low, high))


def _error(tasks: Sequence[TaskTotal], unseen: float = 0.0) -> float:
    """Standard error of the ratio over tasks, by linearisation; infinite of one task. unseen: added to the
    sum of squared deviations of the tasks' means."""
    n, attempts, ratio = len(tasks), sum(task.attempts for task in tasks), _ratio(tasks)
    if n < 2:
        return math.inf
    if not unseen and len({task.total / task.attempts for task in tasks}) == 1:
        return 0.0  # exactly: sums of fractions leave a last digit
    residuals = math.fsum((task.total - ratio * task.attempts) ** 2 for task in tasks)
    return math.sqrt((residuals + unseen * (attempts / n) ** 2) * n / (n - 1)) / attempts


def _ratio(tasks: Sequence[TaskTotal]) -> float:
    if not tasks:
        raise ValueError("no task was graded: there is no mean")
    return math.fsum(task.total for task in tasks) / sum(task.attempts for task in tasks)
