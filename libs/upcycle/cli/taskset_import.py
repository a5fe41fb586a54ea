"""`upcycle tasksets import FILE`: a tasks file of the rows of a data file."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json
from upcycle.cli.report_text import one_line
from upcycle.cli.tasks_file import TasksFile
from upcycle.cli.taskset_selection import UnclearSelection
from upcycle.errors import DefinitionError
from upcycle.tasks import MAX_TASKS, Split, Task, Taskset
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.importers.tasks import ScenarioTarget

SERVED: Final = ("tcp://", "unix://")


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """What of a row makes its task."""

    maps: Annotated[tuple[str, ...], Parameter(name="--map", negative="")] = ()
    """`argument=column`; may be given again. With one, no other column is read."""
    ids: Annotated[str, Parameter(name="--id")] = ""
    """column with the id of each task; default: made of the task's content."""
    families: Annotated[str, Parameter(name="--family")] = ""
    """column with the family of each task; default: the scenario's name."""


_BY_NAME: Final = RowColumns()


async def import_file(
    file: Path,
    *,
    environment: str,
    scenario: str,
    into: TasksFile,
    columns: RowColumns = _BY_NAME,
    split: Split = "train",
    limit: int = 0,
    name: str = "",
    as_json: JsonFlag = False,
) -> int:
    """Write a tasks file with one task for each row of FILE.

    Columns that are called like an argument of the scenario are that argument; --map names others. A cell of
    a .csv is text where the argument is text, else JSON where it reads as JSON; an empty one leaves it out.

    :param file: rows: .csv (its first line names the columns), .jsonl or .parquet.
    :param environment: its file (`env.py`, or `env.py:name` of several), or where it is served (`tcp://…`).
    :param scenario: of the environment.
    :param split: `train`, `held_out`, `audit` or `unassigned`.
    :param limit: take so many rows, the first ones; 0: all, at most 100,000.
    :param name: of the taskset; default: that of FILE.
    :param as_json: one JSON line.
    """
    into.check()
    if limit < 0:
        raise UnclearSelection(f"--limit is {limit}", "give 0 for all rows, or at least 1")
    tasks = await _tasks_of(file, environment, scenario, columns, limit)
    taskset = Taskset(name or file.stem, tasks, split)
    into.write(taskset)
    if as_json:
        print_json("taskset_file", {"taskset": taskset.name, "file": str(into.output), "tasks": len(taskset)})
    else:
        print(f"{into.output}: taskset {one_line(taskset.name)}, {amount(len(taskset), 'task')}, {split}")
    return Exit.OK


async def _tasks_of(
    file: Path, environment: str, scenario: str, columns: RowColumns, limit: int
) -> tuple[Task, ...]:
    from upcycle.importers.files import rows_of_file
    from upcycle.importers.tasks import RowTasks

    by_argument, rows = _columns(columns.maps), rows_of_file(file)
    target = await _target(environment, scenario)
    made = RowTasks(target, by_argument, columns.ids or None, columns.families or None)
    tasks = tuple(made.read(islice(rows, limit) if limit else rows, MAX_TASKS))
    if not tasks:
        raise UnclearSelection(f"{file} has no rows", "nothing was written")
    return tasks


def _columns(maps: tuple[str, ...]) -> Mapping[str, str] | None:
    """{argument: column}; None where nothing is said."""
    found: dict[str, str] = {}
    for one in maps:
        argument, equals, column = one.partition("=")
        if not argument or not equals or not column:
            raise UnclearSelection(f"--map {one!r} names no column", "write --map argument=column")
        if argument in found:
            raise UnclearSelection(f"--map gives argument {argument!r} twice", "give it once")
        found[argument] = column
    return found or None


async def _target(environment: str, scenario: str) -> "ScenarioTarget":
    from upcycle.environment.loading import load_environment
    from upcycle.importers.tasks import target_of

    if environment.startswith(SERVED):
        return await _served(environment, scenario)
    path, name = environment, None
    if ".py:" in environment:
        path, _, name = environment.rpartition(":")
    if not path.endswith(".py"):
        raise DefinitionError(
            f"--environment {environment!r} is no environment", "give its file, env.py, or tcp://host:port"
        )
    return target_of(scenario, load_environment(path, name))


async def _served(url: str, scenario: str) -> "ScenarioTarget":
    from upcycle.environment.channel import ControlChannel
    from upcycle.errors import UnknownName
    from upcycle.importers.tasks import ScenarioTarget
    from upcycle.task_rows import EnvironmentRef

    channel = await ControlChannel.connect(url)
    try:
        welcome = await channel.hello()
        offered = {str(row.get("id")): row for row in await channel.list_tasks()}
    finally:
        await channel.close()
    if scenario not in offered:
        raise UnknownName(f"{url} has no scenario {scenario!r}", f"it has {', '.join(offered) or 'none'}")
    return ScenarioTarget(EnvironmentRef(welcome.name, url=url), scenario, offered[scenario].get("args"))
