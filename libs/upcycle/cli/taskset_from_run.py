"""`upcycle tasksets from RUN`: a tasks file of the tasks that a run found hard, or that taught it nothing."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json
from upcycle.cli.report_text import one_line
from upcycle.cli.tasks_file import TasksFile
from upcycle.cli.taskset_commands import read_taskset, refusals
from upcycle.cli.taskset_selection import Selected, Selection, UnclearSelection
from upcycle.errors import Failed
from upcycle.platform import Platform
from upcycle.tasks import Taskset, exact_name, plain_name

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetResponse
    from upcycle.api.taskset.v1.taskset_pb2 import EpisodeResult

_NONE: Final = Selection()


async def from_run(
    run: str, *, which: Selection = _NONE, into: TasksFile, name: str = "", as_json: JsonFlag = False
) -> int:
    """Write the tasks of RUN that its results choose as a tasks file, in the split of its taskset.

    RUN may be the trajectories.jsonl of an evaluation in one process, its folder or its id.

    Held-out tasks, and those for audits, are left out and counted. So are tasks without a graded episode:
    nothing is known of them.

    :param run: id of a run, `last`, or a trajectories.jsonl.
    :param name: of the taskset in the file; default: that of the run's and `-failed` or the like.
    :param as_json: one JSON line.
    """
    which.check()
    into.check()
    run_id, whole, found = await _found(run, which)
    if not found.chosen:
        raise Failed(f"{run_id}: no task is chosen by {which.flag}: {found}", "nothing was written")
    called = name or f"{whole.name}-{which.word}"
    into.write(whole.filter(found.chosen, name=called))
    if as_json:
        counts = {"tasks": len(found.chosen), "of": found.num_tasks}
        left_out = {"held_out": found.num_held_out, "ungraded": found.num_ungraded}
        line = {"run_id": run_id, "taskset": called, "file": str(into.output), **counts, "left_out": left_out}
        print_json("taskset_file", line)
    else:
        print(f"{into.output}: taskset {one_line(called)}, {found}")
    return Exit.OK


async def _found(run: str, which: Selection) -> tuple[str, Taskset, Selected]:
    from upcycle.reporting.trajectory_files import file_of

    if (path := file_of(run)) is not None:
        from upcycle.cli.taskset_from_file import selected_in_file

        return selected_in_file(path, which)
    async with Platform() as platform:
        return await _selected(platform, run, which)


async def _selected(platform: Platform, run: str, which: Selection) -> tuple[str, Taskset, Selected]:
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
    from upcycle.cli.runs import resolve_run

    run_id = await resolve_run(platform, run)
    with refusals():
        request = GetRunRequest(run_id=run_id, include_results=True)
        done = await platform.tasksets.GetRun(request, timeout=60)
    played = done.run.spec
    revision = exact_name(plain_name(played.taskset), done.run.taskset_revision)
    found = await read_taskset(platform, revision)
    if which.no_spread and played.group_size < 2:
        raise UnclearSelection(
            f"{run_id} played each task once, and one reward has no spread", "evaluate with --group 4"
        )
    return run_id, Taskset.from_message(found.taskset), select(found, done.results, which.holds)


def select(
    taskset: "GetTasksetResponse",
    results: "Iterable[EpisodeResult]",
    holds: "Callable[[Sequence[EpisodeResult]], bool]",
) -> Selected:
    """taskset: with the side of each task."""
    from upcycle.api.common.v1.common_pb2 import SPLIT_AUDIT, SPLIT_HELD_OUT

    episodes = _graded(results)
    sides = [(task.slug, side) for task, side in zip(taskset.taskset.tasks, taskset.task_splits, strict=True)]
    free = [slug for slug, side in sides if side not in (SPLIT_HELD_OUT, SPLIT_AUDIT)]
    graded = [slug for slug in free if episodes.get(slug)]
    chosen = tuple(slug for slug in graded if holds(episodes[slug]))
    return Selected(chosen, len(sides) - len(free), len(free) - len(graded), len(sides))


def _graded(results: "Iterable[EpisodeResult]") -> "dict[str, list[EpisodeResult]]":
    from upcycle.api.taskset.v1.taskset_pb2 import EPISODE_STATUS_GRADED

    found: dict[str, list[EpisodeResult]] = {}
    for one in results:
        if one.status == EPISODE_STATUS_GRADED:
            found.setdefault(one.task_slug, []).append(one)
    return found
