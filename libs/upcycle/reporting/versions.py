"""Two versions compared by the graded sessions of each.

The unit is the task: sessions that begin with the same messages attempt the same one. Where both versions
were given the same tasks they are compared task by task, as the gate does; else as two samples.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from upcycle.reporting.comparison import NotComparable
from upcycle.statistics.independent import independent_difference
from upcycle.statistics.intervals import (
    Estimate,
    TaskTotal,
    difference_estimate,
    mean_estimate,
    rate_estimate,
)
from upcycle.statistics.paired import PairedTask, exact_p_value

Method = Literal["paired", "two_samples"]
METHODS: dict[Method, str] = {
    "paired": "Student's t over the differences of the tasks, which both versions were given; p by the exact "
    "Cochran-Mantel-Haenszel test",
    "two_samples": "square-and-add (Newcombe 1998, Zou and Donner 2008) of Wilson's intervals for success "
    "and of Student's for reward, each clustered by task (Korn and Graubard 1998)",
}


@dataclass(frozen=True, slots=True)
class GradedSession:
    """task: equal for sessions that begin with the same messages."""

    task: str
    reward: float
    success: bool


@dataclass(frozen=True, slots=True)
class VersionScore:
    """One version by its sessions."""

    version: int
    num_sessions: int
    num_tasks: int
    success: Estimate
    reward: Estimate


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """B minus A. num_tasks: with sessions of both where paired, else of the version that has fewer. p_value:
    two-sided, of success; None: of two samples the interval alone speaks."""

    a: VersionScore
    b: VersionScore
    method: Method
    num_tasks: int
    success: Estimate
    reward: Estimate
    p_value: float | None

    @property
    def num_rewards(self) -> int:
        """Every session that counts has a reward."""
        return self.num_tasks

    def to_json(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)


Tasks = dict[str, list[GradedSession]]


def compare_versions(
    a: int, of_a: Collection[GradedSession], b: int, of_b: Collection[GradedSession]
) -> VersionComparison:
    """Version b against version a. Raises NotComparable where one of them has no session."""
    for version, sessions in ((a, of_a), (b, of_b)):
        if not sessions:
            raise NotComparable(
                f"v{version} has no graded session", "sessions count once they have their reward"
            )
    theirs, ours = _by_task(of_a), _by_task(of_b)
    scores = _score(a, theirs), _score(b, ours)
    if theirs.keys() == ours.keys():
        return _paired(*scores, theirs, ours)
    return VersionComparison(
        *scores,
        method="two_samples",
        num_tasks=min(len(theirs), len(ours)),
        success=independent_difference(scores[0].success, scores[1].success),
        reward=independent_difference(scores[0].reward, scores[1].reward),
        p_value=None,
    )


def _paired(a: VersionScore, b: VersionScore, theirs: Tasks, ours: Tasks) -> VersionComparison:
    pairs = [
        PairedTask("", _successes(ours[task]), len(ours[task]), _successes(theirs[task]), len(theirs[task]))
        for task in sorted(ours)
    ]
    swapped = [
        PairedTask("", one.head_successes, one.head_attempts, one.candidate_successes, one.candidate_attempts)
        for one in pairs
    ]
    rewards = [_mean(ours[task]) - _mean(theirs[task]) for task in sorted(ours)]
    return VersionComparison(
        a,
        b,
        method="paired",
        num_tasks=len(pairs),
        success=difference_estimate([one.difference for one in pairs], bounds=(-1, 1)),
        reward=difference_estimate(rewards, bounds=(-1, 1)),
        p_value=min(1.0, 2 * min(exact_p_value(pairs), exact_p_value(swapped))),
    )


def _score(version: int, tasks: Tasks) -> VersionScore:
    totals = [TaskTotal(sum(one.reward for one in some), len(some)) for some in tasks.values()]
    return VersionScore(
        version=version,
        num_sessions=sum(map(len, tasks.values())),
        num_tasks=len(tasks),
        success=rate_estimate([TaskTotal(_successes(some), len(some)) for some in tasks.values()]),
        reward=mean_estimate(totals, bounds=(0.0, 1.0)),
    )


def _by_task(sessions: Collection[GradedSession]) -> Tasks:
    found: Tasks = defaultdict(list)
    for one in sessions:
        found[one.task].append(one)
    return dict(sorted(found.items()))


def _successes(sessions: Sequence[GradedSession]) -> int:
    return sum(one.success for one in sessions)


def _mean(sessions: Sequence[GradedSession]) -> float:
    return sum(one.reward for one in sessions) / len(sessions)
