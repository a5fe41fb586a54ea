"""What the demo measures at its end, on tasks that neither trained nor gated: base and head side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from upcycle.api.taskset.v1.taskset_pb2 import EpisodeResult
from upcycle.statistics.intervals import Estimate, TaskTotal, difference_estimate, rate_estimate


@dataclass(frozen=True, slots=True)
class AuditedVersion:
    """Attempts of one version at the audit tasks. An episode without a grade is an attempt that failed."""

    tasks: tuple[TaskTotal, ...]

    @property
    def rate(self) -> float:
        """Share of successes, 0..1."""
        return rate_estimate(self.tasks).value

    @property
    def ci95(self) -> tuple[float, float]:
        """Two-sided 95 %, clustered by task."""
        return _ends(rate_estimate(self.tasks), (0.0, 1.0))

    def to_json(self) -> dict[str, Any]:
        """Field names of report.json."""
        return {
            "successes": int(sum(task.total for task in self.tasks)),
            "episodes": sum(task.attempts for task in self.tasks),
            "tasks": len(self.tasks),
            "rate": self.rate,
            "ci95": [round(bound, 4) for bound in self.ci95],
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """The base before the training and head after it, on the same tasks in one run, with equal seeds."""

    before: AuditedVersion
    after: AuditedVersion

    @property
    def gain(self) -> float:
        """Mean over tasks of the difference in success, -1..1."""
        return self._gain.value

    @property
    def gain_ci95(self) -> tuple[float, float]:
        """Two-sided 95 %, paired and clustered by task."""
        return _ends(self._gain, (-1.0, 1.0))

    @property
    def _gain(self) -> Estimate:
        pairs = zip(self.before.tasks, self.after.tasks, strict=True)
        return difference_estimate([b.total / b.attempts - a.total / a.attempts for a, b in pairs])

    def to_json(self) -> dict[str, Any]:
        """Field names of report.json."""
        gain = {"difference": self.gain, "ci95": [round(bound, 4) for bound in self.gain_ci95]}
        return {"before": self.before.to_json(), "after": self.after.to_json(), "gain": gain}


def audit_of(results: Iterable[EpisodeResult]) -> Audit:
    """Of a run of head against the base: members 2k are head's, 2k + 1 the base's. A run of the base alone,
    where nothing was promoted, is both."""
    by_side: dict[int, dict[str, list[bool]]] = {0: {}, 1: {}}
    for result in results:
        by_side[result.member % 2].setdefault(result.task_slug, []).append(result.success)
    return Audit(before=_version(by_side[1]), after=_version(by_side[0]))


def _version(by_task: Mapping[str, Sequence[bool]]) -> AuditedVersion:
    return AuditedVersion(
        tuple(TaskTotal(sum(outcomes), len(outcomes)) for _, outcomes in sorted(by_task.items()))
    )


def _ends(estimate: Estimate, widest: tuple[float, float]) -> tuple[float, float]:
    """Where every task is alike nothing is known of others: the widest interval."""
    return widest if estimate.interval is None else (estimate.interval.low, estimate.interval.high)
