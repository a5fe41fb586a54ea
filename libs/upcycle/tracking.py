"""Held-out sets that a training run is followed on: how a set is named, its rate, when it fell, and when the
training reward rises without it. Pure; planner and CLI read it here.

Points of one set are paired by task: every version plays the same tasks with the same seeds.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from upcycle.statistics.intervals import Estimate, TaskTotal, rate_estimate
from upcycle.statistics.student import t_quantile

EVERY: Final = 10
"""Steps between two points, where nothing else is said."""
TWO_DROPS: Final = "two_drops"
STOP_RULES: Final = (TWO_DROPS,)
WORST: Final = 5
"""Families that are named when a run ends by its drops."""
_SURE: Final = 0.975
"""One-sided, of a drop and of an alarm."""
_REWARD_SIGMAS: Final = 3.0
_HALF: Final = 0.5
_TRACKED: Final = re.compile(r"(?P<taskset>[^:\s]+)(?::every=(?P<every>[1-9][0-9]{0,5}))?")


def is_by_platform(*, is_pair: bool, label: str) -> bool:
    """Whether gate, watch or tracking ordered a run: pairs of two versions are the registry's, and the
    planner labels what it tracks."""
    return is_pair or label.startswith("track run-")


@dataclass(frozen=True, slots=True)
class TrackedSet:
    """A taskset, and how many steps lie between two looks at it."""

    taskset: str
    every: int = EVERY


def parse_tracked(text: str) -> TrackedSet:
    """`TASKSET` or `TASKSET:every=K`. Raises ValueError."""
    match = _TRACKED.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is not TASKSET or TASKSET:every=STEPS")
    return TrackedSet(match["taskset"], int(match["every"] or EVERY))


@dataclass(frozen=True, slots=True)
class TrackedPoint:
    """One version on one set. outcomes: attempts and successes by task; families: by task. reward: mean
    training reward of the step, over num_trained episodes, between 0 and 1."""

    step: int
    version: int
    outcomes: Mapping[str, TaskTotal]
    families: Mapping[str, str] = field(default_factory=dict)
    reward: float = 0.0
    num_trained: int = 0

    @property
    def rate(self) -> Estimate | None:
        """Of success, clustered by task; None where nothing was graded."""
        return rate_estimate(list(self.outcomes.values())) if self.outcomes else None

    @property
    def reward_error(self) -> float:
        """At most the standard error of the reward: no reward between 0 and 1 spreads more."""
        return _HALF / math.sqrt(self.num_trained) if self.num_trained else math.inf


@dataclass(frozen=True, slots=True)
class Change:
    """From one point to a later one, in the mean over the tasks of both, with one-sided bounds at .975."""

    mean: float
    low: float
    high: float


def change(before: TrackedPoint, after: TrackedPoint) -> Change:
    """Nothing is sure with fewer than two tasks. Tasks that all moved alike show no spread: half an attempt
    at one task is added to it."""
    moved = [_moved(before, after, task) for task in sorted(set(before.outcomes) & set(after.outcomes))]
    num = len(moved)
    if num < 2:
        return Change(sum(moved), -math.inf, math.inf)
    mean = math.fsum(moved) / num
    spread = math.fsum((one - mean) ** 2 for one in moved) + _HALF**2
    half = t_quantile(_SURE, num - 1) * math.sqrt(spread / (num - 1) / num)
    return Change(mean, mean - half, mean + half)


def drops(points: Sequence[TrackedPoint]) -> list[bool]:
    """Of each point: whether it is surely below the last one that had not dropped. Oldest first."""
    found: list[bool] = []
    reference: TrackedPoint | None = None
    for point in points:
        has_dropped = reference is not None and change(reference, point).high < 0
        found.append(has_dropped)
        if not has_dropped:
            reference = point
    return found


def fell_twice(points: Sequence[TrackedPoint]) -> Sequence[TrackedPoint]:
    """The point before and the two drops in a row that came first; empty where there are none."""
    dropped = drops(points)
    for at in range(2, len(points)):
        if dropped[at] and dropped[at - 1]:
            return points[at - 2 : at + 1]
    return ()


def worst_families(before: TrackedPoint, after: TrackedPoint) -> list[tuple[str, float]]:
    """The families that lost most, with the change of their success rate, worst first."""
    moved: dict[str, list[float]] = {}
    for task in sorted(set(before.outcomes) & set(after.outcomes)):
        moved.setdefault(after.families.get(task, "default"), []).append(_moved(before, after, task))
    means = {family: math.fsum(values) / len(values) for family, values in moved.items()}
    lost = [(family, mean) for family, mean in means.items() if mean < 0]
    return sorted(lost, key=lambda one: (one[1], one[0]))[:WORST]


def reward_alone(taskset: str, points: Sequence[TrackedPoint]) -> str:
    """The alarm "reward up, benchmark not" of the last two points against an earlier one: the reward rose
    surely, and the set surely by less than half of it. Empty where there is nothing to say."""
    for before in points[:-2]:
        if all(_is_alone(before, after) for after in points[-2:]):
            last = points[-1]
            moved = change(before, last)
            rose = f"rose from {before.reward:.3f} to {last.reward:.3f}"
            return (
                f"reward up, benchmark not: since step {before.step} the reward {rose}, while {taskset} "
                f"moved by {moved.mean:+.1%} (at most {moved.high:+.1%})"
            )
    return ""


def why_ended(taskset: str, fall: Sequence[TrackedPoint], runs: Sequence[str]) -> str:
    """Why two drops ended a run, with its worst families. runs: the evaluations of the points."""
    rates = [f"{one.rate.value:.1%} at step {one.step}" for one in fall if one.rate is not None]
    families = [
        f"{family} {moved:+.1%} (upcycle trajectories list --run {runs[-1]} --family {family})"
        for family, moved in worst_families(fall[0], fall[-1])
    ]
    return f"ended early: {taskset} fell twice in a row: {', '.join(rates)}; worst: {'; '.join(families)}"


def _is_alone(before: TrackedPoint, after: TrackedPoint) -> bool:
    risen = after.reward - before.reward
    error = math.hypot(before.reward_error, after.reward_error)
    return risen > _REWARD_SIGMAS * error and change(before, after).high < _HALF * risen


def _moved(before: TrackedPoint, after: TrackedPoint, task: str) -> float:
    first, last = before.outcomes[task], after.outcomes[task]
    return last.total / last.attempts - first.total / first.attempts
