"""What a training brought, measured at its end on tasks that neither trained nor gated: base and head side by
side. The demo and `upcycle train --audit` use it."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.run_config import RunSpec, Sampling
from upcycle.run_config.flags import evaluation_run
from upcycle.statistics.intervals import Estimate, TaskTotal, difference_estimate, rate_estimate

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import EpisodeResult
    from upcycle.platform import Platform

ATTEMPTS: Final = 2
"""Of each version at each task."""
LABEL: Final = "audit"
"""The label of a run that audits begins with it."""
_LOOK_S: Final = 0.5
_ASK_S: Final = 10.0
_RESULTS_S: Final = 60.0


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


def audit_of(results: "Iterable[EpisodeResult]") -> Audit:
    """Of a run of head against the base: members 2k are head's, 2k + 1 the base's. A run of the base alone,
    where nothing was promoted, is both. Tasks without a solution are left out."""
    by_side: dict[int, dict[str, list[bool]]] = {0: {}, 1: {}}
    for result in results:
        if result.family == IMPOSSIBLE_FAMILY:
            continue
        by_side[result.member % 2].setdefault(result.task_slug, []).append(result.success)
    return Audit(before=_version(by_side[1]), after=_version(by_side[0]))


def _version(by_task: Mapping[str, Sequence[bool]]) -> AuditedVersion:
    return AuditedVersion(
        tuple(TaskTotal(sum(outcomes), len(outcomes)) for _, outcomes in sorted(by_task.items()))
    )


def _ends(estimate: Estimate, widest: tuple[float, float]) -> tuple[float, float]:
    """Where every task is alike nothing is known of others: the widest interval."""
    return widest if estimate.interval is None else (estimate.interval.low, estimate.interval.high)


def audit_spec(
    model: str, taskset: str, *, head: int, base: int, sampling: Sampling, attempts: int = ATTEMPTS
) -> RunSpec:
    """The one opening of the audit tasks, sampled as the training was. Where head is the base, it stands for
    both."""
    spec = evaluation_run(
        model,
        taskset,
        group=2 * attempts,
        version=head,
        against_version=base if head != base else None,
        label=LABEL,
    )
    return replace(spec, sampling=sampling)


async def read_audit(platform: "Platform", run_ids: Iterable[str]) -> Audit:
    """What two versions did side by side, in these runs together."""
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest

    results: list[EpisodeResult] = []
    for run_id in run_ids:
        asked = GetRunRequest(run_id=run_id, include_results=True)
        results += (await platform.tasksets.GetRun(asked, timeout=_RESULTS_S)).results
    return audit_of(results)


async def wait_for_verdicts(platform: "Platform", model: str, run_id: str = "") -> None:
    """Until every checkpoint of the model, or of one run, is promoted or held, so that head is final."""
    from upcycle.api.registry.v1.registry_pb2 import CHECKPOINT_STATE_CANDIDATE, CHECKPOINT_STATE_EVALUATING
    from upcycle.api.registry.v1.service_pb2 import ListCheckpointsRequest

    waiting = (CHECKPOINT_STATE_CANDIDATE, CHECKPOINT_STATE_EVALUATING)
    while True:
        request = ListCheckpointsRequest(model=model)
        listed = (await platform.registry.ListCheckpoints(request, timeout=_ASK_S)).checkpoints
        if not any(one.state in waiting and run_id in ("", one.run_id) for one in listed):
            return
        await asyncio.sleep(_LOOK_S)


async def head_of(platform: "Platform", model: str) -> int:
    """The promoted version."""
    from upcycle.api.registry.v1.service_pb2 import GetModelRequest

    found = await platform.registry.GetModel(GetModelRequest(model=model), timeout=_ASK_S)
    return found.model.head_version
