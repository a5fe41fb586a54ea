"""How well scores tell successes from failures, and whether they mean what they say; clustered by task.

Scores are probabilities of success. Within a task is what a choice among attempts at one task rests on: over
all pairs, scores that only know which tasks are easy look good, too.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.statistics.intervals import (
    CONFIDENCE,
    Estimate,
    Interval,
    TaskTotal,
    mean_estimate,
    rate_estimate,
)
from upcycle.statistics.student import t_quantile

NUM_CALIBRATION_BINS: Final = 5


@dataclass(frozen=True, slots=True)
class ScoredOutcome:
    """An episode of a task. score: from 0 to 1."""

    task: str
    score: float
    success: bool


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Episodes whose scores are alike. predicted: their mean score; observed: the share that succeeded."""

    predicted: float
    observed: Estimate
    num_episodes: int


@dataclass(frozen=True, slots=True)
class ScoreCalibration:
    """bias: mean score minus share of successes; brier: mean squared error of the scores, 0 is best;
    brier_of_rate: that of a score which only knows how many succeed."""

    bias: Estimate
    brier: Estimate
    brier_of_rate: float
    bins: tuple[CalibrationBin, ...]


def auc_estimate(scored: Sequence[ScoredOutcome], confidence: float = CONFIDENCE) -> Estimate | None:
    """The chance that a success has a higher score than a failure, a tie counting half: the area under the
    ROC curve. None where all outcomes are alike.

    Its error is that of the mean placement of each episode, summed by task (Obuchowski 1997, Biometrics
    53:567), and its interval is Student's on the scale of log-odds. No interval at 0 and 1, and of one task.
    """
    wins = sorted(one.score for one in scored if one.success)
    losses = sorted(one.score for one in scored if not one.success)
    if not wins or not losses:
        return None
    placements = [
        _share_below(one.score, losses) if one.success else 1 - _share_below(one.score, wins)
        for one in scored
    ]
    value = math.fsum(place for one, place in zip(scored, placements, strict=True) if one.success) / len(wins)
    residuals: defaultdict[str, float] = defaultdict(float)
    for one, place in zip(scored, placements, strict=True):
        residuals[one.task] += (place - value) / (len(wins) if one.success else len(losses))
    return _on_log_odds(value, list(residuals.values()), confidence)


def auc_within_tasks(scored: Iterable[ScoredOutcome]) -> Estimate | None:
    """The same over the pairs of attempts at one task alone. None where no task has both outcomes."""
    tasks = []
    for attempts in _by_task(scored).values():
        losses = sorted(one.score for one in attempts if not one.success)
        wins = [one.score for one in attempts if one.success]
        if wins and losses:
            right = math.fsum(_share_below(score, losses) for score in wins) * len(losses)
            tasks.append(TaskTotal(right, len(wins) * len(losses)))
    return mean_estimate(tasks, bounds=(0.0, 1.0)) if tasks else None


def calibration_of(scored: Sequence[ScoredOutcome]) -> ScoreCalibration:
    """Of at least one episode. Bins hold equally many episodes, as far as scores differ."""
    tasks = list(_by_task(scored).values())
    rate = sum(one.success for one in scored) / len(scored)

    def bias(one: ScoredOutcome) -> float:
        return one.score - one.success

    return ScoreCalibration(
        bias=mean_estimate([_total(one, bias) for one in tasks], bounds=(-1.0, 1.0)),
        brier=mean_estimate([_total(one, lambda one: bias(one) ** 2) for one in tasks], bounds=(0.0, 1.0)),
        brier_of_rate=rate * (1 - rate),
        bins=tuple(map(_bin, _cut(sorted(scored, key=lambda one: one.score)))),
    )


def _share_below(score: float, others: Sequence[float]) -> float:
    """Of sorted scores; equal ones count half."""
    return (bisect_left(others, score) + bisect_right(others, score)) / 2 / len(others)


def _on_log_odds(value: float, residuals: Sequence[float], confidence: float) -> Estimate:
    n = len(residuals)
    if n < 2 or not 0 < value < 1:
        return Estimate(value)
    error = math.sqrt(n / (n - 1) * math.fsum(one * one for one in residuals))
    half = t_quantile((1 + confidence) / 2, n - 1) * error / (value * (1 - value))
    odds = math.log(value / (1 - value))
    low, high = (1 / (1 + math.exp(-end)) for end in (odds - half, odds + half))
    return Estimate(value, Interval(low, high))


def _by_task(scored: Iterable[ScoredOutcome]) -> dict[str, list[ScoredOutcome]]:
    found: defaultdict[str, list[ScoredOutcome]] = defaultdict(list)
    for one in scored:
        found[one.task].append(one)
    return found


def _total(attempts: Sequence[ScoredOutcome], value: Callable[[ScoredOutcome], float]) -> TaskTotal:
    return TaskTotal(math.fsum(map(value, attempts)), len(attempts))


def _cut(ordered: Sequence[ScoredOutcome]) -> Iterable[Sequence[ScoredOutcome]]:
    """Equal scores stay in one bin."""
    scores, begin = [one.score for one in ordered], 0
    for number in range(1, NUM_CALIBRATION_BINS + 1):
        end = len(ordered) * number // NUM_CALIBRATION_BINS
        end = bisect_right(scores, scores[end - 1]) if end > begin else begin
        if end > begin:
            yield ordered[begin:end]
        begin = end


def _bin(episodes: Sequence[ScoredOutcome]) -> CalibrationBin:
    tasks = _by_task(episodes).values()
    observed = rate_estimate([TaskTotal(sum(one.success for one in rows), len(rows)) for rows in tasks])
    return CalibrationBin(math.fsum(one.score for one in episodes) / len(episodes), observed, len(episodes))
