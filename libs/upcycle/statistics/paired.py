"""Paired statistics on success counts: exact test, score interval, cluster bootstrap. Pure and deterministic.

A task is the unit that was drawn, so it is the unit that is resampled; attempts at one task share
its difficulty.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

T = TypeVar("T")

# Probability mass below this is dropped while distributions are convolved; it bounds the error.
_NEGLIGIBLE = 1e-18


@dataclass(frozen=True, slots=True)
class PairedTask:
    """Both versions on one task: successes out of attempts, attempts >= 1 on both sides."""

    family: str
    candidate_successes: int
    candidate_attempts: int
    head_successes: int
    head_attempts: int

    @property
    def candidate_rate(self) -> float:
        """Success rate of the candidate, 0..1."""
        return self.candidate_successes / self.candidate_attempts

    @property
    def head_rate(self) -> float:
        """Success rate of head, 0..1."""
        return self.head_successes / self.head_attempts

    @property
    def difference(self) -> float:
        """Candidate minus head, -1..1."""
        return self.candidate_rate - self.head_rate


def normal_quantile(probability: float) -> float:
    """z with P(Z <= z) = probability."""
    return NormalDist().inv_cdf(probability)


def wilson(successes: float, trials: float, z: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion; each side misses with the one-sided error of `z`."""
    if trials <= 0:
        return 0.0, 1.0
    rate = successes / trials
    scale = 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / scale
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def exact_p_value(pairs: Sequence[PairedTask]) -> float:
    """P(candidate successes this many or more), were both versions equally good on each task.

    Conditions on each task's successes: they fall on the candidate's attempts like a hypergeometric draw, and
    the sum over tasks is convolved exactly (the exact Cochran-Mantel-Haenszel test). With one attempt each it
    is McNemar's exact test. It holds at every sample size: no change passes with at most alpha.
    """
    observed = sum(pair.candidate_successes for pair in pairs)
    offset = 0
    distribution = [1.0]
    for (mine, other, successes), times in Counter(map(_stratum, pairs)).items():
        offset += times * max(0, successes - other)
        distribution = _convolved(distribution, _power(_hypergeometric(mine, other, successes), times))
    return min(1.0, math.fsum(distribution[max(0, observed - offset) :]))


def _stratum(pair: PairedTask) -> tuple[int, int, int]:
    successes = pair.candidate_successes + pair.head_successes
    return pair.candidate_attempts, pair.head_attempts, successes


def _hypergeometric(mine: int, other: int, successes: int) -> list[float]:
    """Probabilities of how many of a task's successes are the candidate's, from the fewest possible up."""
    ways = math.comb(mine + other, successes)
    low, high = max(0, successes - other), min(mine, successes)
    return [math.comb(mine, k) * math.comb(other, successes - k) / ways for k in range(low, high + 1)]


def _power(distribution: list[float], times: int) -> list[float]:
    """Distribution of the sum of `times` independent draws."""
    result = [1.0]
    square = distribution
    while times:
        if times & 1:
            result = _convolved(result, square)
        times >>= 1
        if times:
            square = _convolved(square, square)
    return result


def _convolved(left: list[float], right: list[float]) -> list[float]:
    total = [0.0] * (len(left) + len(right) - 1)
    for i, mass in enumerate(left):
        if mass > _NEGLIGIBLE:
            for j, probability in enumerate(right):
                total[i + j] += mass * probability
    return total


def bootstrap_lower(differences: Sequence[float], alpha: float, *, seed: int, reps: int) -> float:
    """One-sided lower bound of the mean difference: percentile bootstrap over tasks.

    Deviations are stretched by sqrt(n / (n - 1)), the factor by which the percentile bootstrap of a mean is
    too narrow. The bound of a single task is -1, because nothing can be resampled.
    """
    n = len(differences)
    if n < 2:
        return -1.0
    mean = _mean(differences)
    rank = max(0, math.ceil(alpha * reps) - 1)
    return stretched(mean, resampled(differences, _mean, seed=seed, reps=reps)[rank], n)


def resampled(
    tasks: Sequence[T], estimate: Callable[[Sequence[T]], float], *, seed: int, reps: int
) -> list[float]:
    """The estimate on `reps` draws of as many tasks with replacement, smallest first."""
    rng = random.Random(seed)  # noqa: S311 - a repeatable resampling, not a secret
    return sorted(estimate(rng.choices(tasks, k=len(tasks))) for _ in range(reps))


def stretched(mean: float, end: float, n: int) -> float:
    """The end of a percentile interval, its deviation widened by sqrt(n / (n - 1)): see bootstrap_lower."""
    return mean + (end - mean) * math.sqrt(n / (n - 1))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
