"""Training runs on the episodes of evaluations: submits them, waits for them, reports their result."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from upcycle.errors import SourcesRefused, UpcycleError
from upcycle.leak_scan import leak_lines
from upcycle.local_runs import is_local_run, why_no_source
from upcycle.results import Run as Episode
from upcycle.run_client import follow_run, register_taskset, submit_run
from upcycle.tasks import Taskset, plain_name
from upcycle.usage import NONE, Usage
from upcycle.wire import usage_of

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run
    from upcycle.platform import Platform
    from upcycle.run_config import RunSpec

log: Final = logging.getLogger(__name__)

SUBMIT_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Source:
    """How many groups of one evaluation a training run trained. left_out: the others, by reason."""

    run_id: str
    groups: int
    trained: int
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A training run that is over. steps: optimizer steps; version: newest published policy of the model;
    counts: groups by how they ended; failure: why it did not complete, or why it ended before its last step;
    usage: seconds that it took of engines, environments and the trainer, and their cost.
    """

    run_id: str
    steps: int
    version: int
    counts: Mapping[str, int]
    sources: tuple[Source, ...]
    failure: str = ""
    usage: Usage = NONE


class TrainingFailed(UpcycleError):
    """A training run failed, was cancelled, or was not over in time. run: what is known of it."""

    kind = "training_failed"

    def __init__(self, message: str, hint: str = "", run: TrainedRun | None = None) -> None:
        super().__init__(message, hint)
        self.run = run


def run_ids_of(runs: "Sequence[Episode | str]") -> list[str]:
    """Run ids of evaluations, each once. Raises UpcycleError for none, and for a Run without its id;
    SourcesRefused for an evaluation in a client's own process."""
    found = [run if isinstance(run, str) else run.run_id for run in runs]
    if not found:
        raise UpcycleError("there is no run to train on", "evaluate first: await taskset.run(agent, job=job)")
    if "" in found:
        raise UpcycleError(
            "a Run does not say which evaluation it belongs to", "take it from an evaluation, or give run ids"
        )
    for run_id in filter(is_local_run, found):
        raise SourcesRefused(why_no_source(run_id), "TrainingClient.step trains on it as SFT")
    return list(dict.fromkeys(found))


async def submit(
    platform: "Platform", model: str, run_ids: Sequence[str], taskset: "Taskset | str | None", spec: "RunSpec"
) -> str:
    """The run id of a training run whose first batches are these evaluations. spec: all but these and the
    taskset.

    taskset: what it goes on with; None: that of the first evaluation. Raises SourcesRefused and
    upcycle.rpc.RemoteError.
    """
    from upcycle.run_config.wire import spec_to_wire

    follows = spec.training is not None and spec.training.is_standing
    name = await _taskset(platform, run_ids[0], taskset, follows=follows)
    run = replace(spec, taskset=name, source_runs=tuple(run_ids))
    return (await submit_run(platform, spec_to_wire(run))).run_id


async def submit_alone(platform: "Platform", spec: "RunSpec") -> str:
    """The run id of a training run that is about no tasks, of recorded sessions. Raises RemoteError."""
    from upcycle.run_config.wire import spec_to_wire

    return (await submit_run(platform, spec_to_wire(replace(spec, taskset="")))).run_id


async def _taskset(
    platform: "Platform", run_id: str, taskset: "Taskset | str | None", *, follows: bool
) -> str:
    """follows: the run takes the newest revision for its next groups, instead of keeping one."""
    if isinstance(taskset, Taskset):
        registered = await register_taskset(platform, taskset)
        for line in await leak_lines(registered, taskset):
            log.warning("%s", line)
        return registered.name if follows else registered.exact_name
    return await taskset_of(platform, run_id) if taskset is None else taskset


async def taskset_of(platform: "Platform", run_id: str) -> str:
    """The taskset of a source, to train on. Raises SourcesRefused unless it is of split train."""
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
    from upcycle.rpc import remote_errors

    with remote_errors(f"look at {run_id}"):
        run = (await platform.tasksets.GetRun(GetRunRequest(run_id=run_id), timeout=SUBMIT_TIMEOUT_S)).run
        name, allowed = plain_name(run.spec.taskset), await train_tasksets(platform)
    if name not in allowed:
        raise SourcesRefused(
            f"{run_id} is over {name!r}, which is not of split train: a run cannot continue with it",
            "name the taskset to train on, or an evaluation of a train taskset",
        )
    return name


async def train_tasksets(platform: "Platform") -> set[str]:
    """Names of the registered tasksets of split train."""
    from upcycle.api.common.v1.common_pb2 import SPLIT_TRAIN
    from upcycle.api.taskset.v1.service_pb2 import ListTasksetsRequest

    listed = await platform.tasksets.ListTasksets(ListTasksetsRequest(), timeout=SUBMIT_TIMEOUT_S)
    return {plain_name(taskset.name) for taskset in listed.tasksets if taskset.split == SPLIT_TRAIN}


async def wait_until_finished(platform: "Platform", run_id: str, timeout_s: float) -> TrainedRun:
    """Wait until a training run is over. Raises TrainingFailed, and RemoteError for what is refused."""
    from upcycle.rpc import CallTimedOut

    try:
        return _judged(await follow_run(platform, run_id, timeout_s=timeout_s))
    except CallTimedOut as error:
        raise TrainingFailed(
            f"{run_id} was not over within {timeout_s:g} s; it goes on", f"upcycle train --attach {run_id}"
        ) from error


def _judged(run: "Run") -> TrainedRun:
    from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED

    completed = run.state == RUN_STATE_COMPLETED
    done = TrainedRun(
        run_id=run.run_id,
        steps=run.step,
        version=run.policy_version,
        counts=dict(run.counts.groups_by_outcome),
        sources=tuple(_source(one) for one in run.sources),
        failure=run.failure or ("" if completed else "cancelled"),
        usage=usage_of(run.usage),
    )
    if not completed:
        hint = f"see `upcycle why {run.run_id}`"
        raise TrainingFailed(f"{run.run_id} did not complete: {done.failure}", hint, done)
    return done


def _source(report: Any) -> Source:
    return Source(report.run_id, report.groups, report.trained, dict(report.left_out))
