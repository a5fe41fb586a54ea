"""`upcycle tasksets from FILE`: of the trajectories of an evaluation in one process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from upcycle.cli.output import human
from upcycle.cli.taskset_selection import Selected, Selection, UnclearSelection
from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun
from upcycle.reporting.trajectory_files import TrajectoryLines, read_file
from upcycle.task_rows import Task, task_from_json
from upcycle.tasks import KEPT_APART, Split, Taskset

_SPLITS: Final[Mapping[str, Split]] = {one: one for one in get_args(Split)}
_WHOLE: Final = ("slug", "scenario", "args", "environment")


def selected_in_file(path: Path, which: Selection) -> tuple[str, Taskset, Selected]:
    """Id of the evaluation, its tasks, and those that are chosen. Raises NoTrajectories and
    UnclearSelection."""
    lines = TrajectoryLines(path)
    file = read_file(lines)
    split, run = _SPLITS.get(file.planned.split), file.run
    if split is None:
        raise UnclearSelection(f"{path} does not say of which split its tasks are", "name the run instead")
    if which.no_spread and run.group < 2:
        raise UnclearSelection(f"{path} has each task once, and one reward has no spread", "use --group 4")
    tasks: dict[str, Task] = {}
    for number, row in lines.rows():
        task = _task(f"{path}:{number}", row["task"])
        tasks.setdefault(task.slug, task)
    for said in (run.shortfall, run.notice):
        if said:
            human().print(f"{path}: {said}", style="yellow", markup=False, soft_wrap=True)
    whole = Taskset(run.taskset, tasks.values(), split)
    return run.run_id, whole, _select(whole, run, which)


def _task(where: str, row: Mapping[str, Any]) -> Task:
    if missing := [name for name in _WHOLE if name not in row]:
        raise UnclearSelection(f"{where}: its task has no {missing[0]!r}", "name the run instead")
    return task_from_json({name: row[name] for name in (*_WHOLE, "family") if name in row})


def _select(whole: Taskset, run: EvaluatedRun, which: Selection) -> Selected:
    graded: dict[str, list[EpisodeRow]] = {task.slug: [] for task in whole}
    for one in run.episodes:
        if one.reward is not None:
            graded[one.task_slug].append(one)
    if whole.split in KEPT_APART:
        return Selected((), len(whole), 0, len(whole))
    chosen = tuple(slug for slug, rows in graded.items() if rows and which.holds(rows))
    return Selected(chosen, 0, sum(not rows for rows in graded.values()), len(whole))
