"""The graded trajectories of a run: from the platform that keeps it, or from a trajectories file."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upcycle.errors import TasksetInvalid
from upcycle.regrading.chosen import ChosenTrajectory, GradedRun
from upcycle.regrading.errors import RegradeRefused
from upcycle.reporting.external_rows import PLANNED, PlannedEvaluation
from upcycle.reporting.reading import CALL_TIMEOUT_S, summaries_of
from upcycle.reporting.trajectory_files import TrajectoryLines
from upcycle.task_rows import task_from_json
from upcycle.tasks import Task, Taskset, exact_name, plain_name
from upcycle.trajectory_lines.writing import line_of_record

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
    from upcycle.platform import Platform

_TASK_FIELDS = ("slug", "scenario", "args", "family", "environment")


async def graded_on_platform(platform: "Platform", run_id: str) -> GradedRun:
    """Raises RegradeRefused for a run without a graded trajectory, or whose tasks are gone; Unavailable and
    RemoteError."""
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
    from upcycle.rpc import remote_errors

    with remote_errors(f"read run {run_id}"):
        run = (await platform.tasksets.GetRun(GetRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S)).run
    summaries = (await summaries_of(platform, run_id)).values()
    graded = [one for one in summaries if one.graded]
    tasks = await _tasks(platform, run, graded)
    sources = {plain_name(one.taskset): one.source_digest for one in run.mix}
    found = [
        ChosenTrajectory(
            one.episode.trajectory_id,
            tasks[_taskset(run, one), one.episode.task_slug],
            sources.get(plain_name(_taskset(run, one)), run.source_digest),
            _reading(platform, one.episode.trajectory_id),
        )
        for one in graded
    ]
    return _by_task(run_id, found, len(summaries) - len(graded))


def graded_in_file(path: Path) -> GradedRun:
    """Raises NoTrajectories, and RegradeRefused where no line has a reward."""
    lines, found, num_ungraded, run_id = TrajectoryLines(path), list[ChosenTrajectory](), 0, ""
    for number, row in lines.rows():
        if row.get("reward") is None:
            num_ungraded += 1
            continue
        with lines.refusing(number):
            name = str(row.get("episode_id") or f"line {number}")
            planned = PlannedEvaluation.of_row(row.get(PLANNED))
            found.append(ChosenTrajectory(name, _task_of(row["task"]), planned.source_digest, _given(row)))
        run_id = run_id or str(row.get("run_id") or path.name)
    return replace(_by_task(run_id or path.name, found, num_ungraded), notice=lines.notice)


def _by_task(run_id: str, found: Iterable[ChosenTrajectory], num_ungraded: int) -> GradedRun:
    ordered = tuple(sorted(found, key=lambda one: (one.task.slug, one.name)))
    if not ordered:
        raise RegradeRefused(f"{run_id} has no graded trajectory", "name a run that has some: `upcycle runs`")
    return GradedRun(run_id, ordered, num_ungraded)


def _taskset(run: "Run", summary: "TrajectorySummary") -> str:
    """With its revision; older planners did not say it with each episode."""
    return summary.episode.taskset or exact_name(plain_name(run.spec.taskset), run.taskset_revision)


async def _tasks(
    platform: "Platform", run: "Run", graded: Iterable["TrajectorySummary"]
) -> dict[tuple[str, str], Task]:
    """By taskset and slug, each as it was played."""
    from upcycle.rpc import RemoteNotFound

    played: dict[str, dict[str, str]] = {}
    for one in graded:
        played.setdefault(_taskset(run, one), {})[one.episode.task_slug] = one.episode.task_digest
    tasks: dict[tuple[str, str], Task] = {}
    for name, digests in played.items():
        try:
            known = {task.slug: task for task in await Taskset.from_api(name, runtime=platform)}
        except RemoteNotFound as error:
            raise RegradeRefused(
                f"the tasks of {run.run_id} are gone: {error.message}", "register the taskset again"
            ) from error
        for slug, digest in digests.items():
            if slug not in known or known[slug].digest != digest:
                raise RegradeRefused(
                    f"taskset {name!r} has no task {slug!r:.80} as {run.run_id} played it ({digest[:12]})",
                    "without its arguments it cannot be played again",
                )
            tasks[name, slug] = known[slug]
    return tasks


def _reading(platform: "Platform", trajectory_id: str) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    async def read() -> Mapping[str, Any]:
        from google.protobuf.json_format import MessageToDict

        from upcycle.api.trajectory.v1.service_pb2 import GetTrajectoryRequest
        from upcycle.rpc import remote_errors

        request = GetTrajectoryRequest(trajectory_id=trajectory_id)
        with remote_errors(f"read {trajectory_id}"):
            record = await platform.trajectories.GetTrajectory(request, timeout=CALL_TIMEOUT_S)
        for turn in record.body.turns:  # tokens are none of what is replayed
            for name in ("new_prompt_ids", "sampled_ids", "sampled_logprobs", "sampled_texts"):
                turn.ClearField(name)
        return line_of_record(MessageToDict(record, preserving_proto_field_name=True))

    return read


def _given(row: Mapping[str, Any]) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    async def read() -> Mapping[str, Any]:
        return row

    return read


def _task_of(row: Mapping[str, Any]) -> Task:
    try:
        return task_from_json({name: row[name] for name in _TASK_FIELDS if name in row})
    except TasksetInvalid as error:
        raise ValueError(f"its task: {error}") from error
