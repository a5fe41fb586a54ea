"""Whether one version is better than another on the same tasks: Student's bound and an exact test."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from upcycle.gate.evidence import TaskPlay
from upcycle.gate.outcomes import TaskCount
from upcycle.statistics.binomial import binomial_tail
from upcycle.statistics.student import t_quantile, t_tail


@dataclass(frozen=True, slots=True)
class Gain:
    """A version against another. Rates are means over tasks. lower, upper: one-sided bounds at `level` each.
    p: of no difference; exact where attempts are paired, Student's where they are not."""

    num_tasks: int
    rate: float
    other_rate: float
    difference: float
    error: float  # standard error of the difference
    lower: float
    upper: float
    p: float
    level: float

    def is_above(self, floor: float) -> bool:
        """Both tests show a gain above the floor."""
        return self.lower > floor and self.p <= self.level

    def may_exceed(self, floor: float, level: float) -> bool:
        """Whether a gain of `floor` is within the upper bound at `level`."""
        return self.difference + t_quantile(1 - level, self.num_tasks - 1) * self.error >= floor


def gain_of(plays: Sequence[TaskPlay], level: float) -> Gain:
    """What the plays of both versions show. At least 2 tasks."""
    n = len(plays)
    differences = [play.difference for play in plays]
    mean, error = mean_and_error(differences)
    half = t_quantile(1 - level, n - 1) * error
    p = sign_test(sum([play.wins for play in plays]), sum([play.losses for play in plays]))
    return Gain(
        num_tasks=n,
        rate=math.fsum([play.rate for play in plays]) / n,
        other_rate=math.fsum([play.other_rate for play in plays]) / n,
        difference=mean,
        error=error,
        lower=mean - half,
        upper=mean + half,
        p=p,
        level=level,
    )


def against_version(plays: Sequence[TaskPlay], other: Mapping[str, TaskCount], level: float) -> Gain | None:
    """The candidate of the plays against a version that was played at another time; None: on fewer than 2 of
    their tasks."""
    common = [(play.rate, other[play.task].rate) for play in plays if play.task in other]
    n = len(common)
    if n < 2:
        return None
    mean, error = mean_and_error([rate - other_rate for rate, other_rate in common])
    half = t_quantile(1 - level, n - 1) * error
    rates = math.fsum(rate for rate, _ in common) / n, math.fsum(rate for _, rate in common) / n
    p = t_tail(mean / error, n - 1) if error else float(mean <= 0)
    return Gain(n, *rates, mean, error, mean - half, mean + half, p, level)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, with n - 1. At least 2 values."""
    n = len(values)
    mean = math.fsum(values) / n
    return mean, math.sqrt(math.fsum([(value - mean) ** 2 for value in values]) / (n - 1) / n)


def sign_test(wins: int, losses: int) -> float:
    """P(so many wins or more) of fair coins: McNemar's exact test on attempts that were paired by seed.

    Equal seeds make attempts dependent, and attempts at a task share its difficulty; without a difference
    each pair that differs is a fair coin all the same.
    """
    return binomial_tail(wins, wins + losses, 0.5)


@dataclass(frozen=True, slots=True)
class SampleNeeded:
    """What would settle it if the gain is as large as it looked; None: no such number."""

    tasks: int | None  # at the present attempts
    attempts: int | None  # per task and side, of the present tasks


def needed_for(plays: Sequence[TaskPlay], floor: float, level: float) -> SampleNeeded:
    """How much evidence would put the lower bound above the floor."""
    n = len(plays)
    mean, error = mean_and_error([play.difference for play in plays])
    gap = mean - floor
    if gap <= 0:
        return SampleNeeded(None, None)
    allowed = (gap / t_quantile(1 - level, n - 1)) ** 2 * n
    variance = error**2 * n
    tasks = max(n + 1, math.ceil(n * variance / allowed))
    attempts = min(play.attempts for play in plays)
    if attempts < 2:
        return SampleNeeded(tasks, None)
    within = math.fsum(play.noise for play in plays) / n
    room = allowed - max(0.0, variance - within)
    return SampleNeeded(tasks, max(attempts + 1, math.ceil(within * attempts / room)) if room > 0 else None)
