"""Tasksets that a person names: the file that defines them, or the name of a registered one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from upcycle.cli.output import human
from upcycle.cli.terminal_text import terminal_text
from upcycle.errors import DefinitionError, UpcycleError
from upcycle.raised import described, place_of
from upcycle.tasks_files import TASKS_FILES
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.platform import Platform
    from upcycle.run_client import RegisteredTaskset
    from upcycle.tasks import Taskset

NO_TASKSET: Final = 'make one: tasks = Taskset("name", [scenario.task(argument=...)])'


class AmbiguousTaskset(UpcycleError, ValueError):
    """A tasks file defines several tasksets and none was named."""

    kind = "ambiguous_taskset"


class UnclearTasks(UpcycleError, ValueError):
    """What is named is a file, and none of tasks."""

    kind = "unclear_tasks"


@dataclass(frozen=True, slots=True)
class TasksetSource:
    """What a person named. name: of the taskset that runs. defined: all that the file has."""

    name: str
    defined: "tuple[Taskset, ...]" = ()

    def as_sent(self, digest: str) -> "TasksetSource":
        """The same, of the environment as `upcycle deploy` sent it: the taskset that runs and all of its
        environment, such as that of its gate. Raises AmbiguousTaskset for a registered name, SourceRefused
        for what is no digest."""
        from upcycle.deploying import as_deployed

        chosen = next((one for one in self.defined if one.name == self.name), None)
        if chosen is None:
            raise AmbiguousTaskset(
                f"--deployed is for tasks of a file, and {self.name!r} is registered: it has its "
                "environment already",
                "name the file, or: upcycle sync tasks FILE NAME --deployed DIGEST",
            )
        where = chosen.environment
        sent = (as_deployed(one, digest) if one.environment == where else one for one in self.defined)
        return TasksetSource(self.name, tuple(sent))

    async def register(self, platform: "Platform", *, exact: bool = True) -> str:
        """The name to run. Of a file it is that of exactly these tasks, `name@2`, or without `exact` the name
        alone: tasks that changed since they were registered are a new revision. A registered name stays as
        it is.
        """
        from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest
        from upcycle.run_client import register_taskset

        if not self.defined:
            await platform.tasksets.GetTaskset(GetTasksetRequest(name=self.name), timeout=10)
            return self.name
        names = dict[str, str]()
        for taskset in self.defined:
            done = await register_taskset(platform, taskset)
            names[taskset.name] = done.exact_name if exact else done.name
            if done.is_new and done.revision > 1:
                tasks = amount(done.num_tasks, "task")
                human().print(f"{done.name}: revision {done.revision}, {tasks}", markup=False)
            await print_leaks(done, taskset)
        return names[self.name]


async def print_leaks(registered: "RegisteredTaskset", taskset: "Taskset") -> None:
    """Warn of new tasks that give away what the agent has to find."""
    from upcycle.leak_scan import leak_lines

    for line in await leak_lines(registered, taskset):
        human().print(terminal_text(line), style="yellow", markup=False, soft_wrap=True)


def load_source(source: str, name: str = "", *, trains: bool = False) -> TasksetSource:
    """The tasksets of a tasks file, or `source` as a registered name; connects to nothing.

    Raises AmbiguousTaskset when the file defines several and `name` says nothing.
    """
    path = Path(source)
    if path.suffix not in TASKS_FILES:
        if path.is_file() or (
            path.is_dir() and len(path.parts) > 1
        ):  # a folder's own name may be a taskset's
            raise UnclearTasks(
                f"{source} is a folder" if path.is_dir() else f"{source} is a file, and none of tasks",
                "give a .py, .json, .jsonl or .csv file, or the name of a registered taskset",
            )
        return TasksetSource(source)
    from upcycle.tasks import KEPT_APART

    found = load_tasksets(path)
    if not found:
        raise DefinitionError(f"{path} defines no taskset", NO_TASKSET)
    if not name and len(found) > 1:
        usable = " | ".join(one.name for one in found.values() if not trains or one.split not in KEPT_APART)
        raise AmbiguousTaskset(f"{path} defines {len(found)} tasksets", f"name one: --taskset-name {usable}")
    chosen = name or next(iter(found))
    if chosen not in found:
        raise AmbiguousTaskset(f"{path} has no taskset {chosen!r}", f"it has {', '.join(found)}")
    return TasksetSource(chosen, tuple(found.values()))


def load_tasksets(path: Path) -> "dict[str, Taskset]":
    """Every taskset of a tasks file, by name."""
    from upcycle.cli.task_check import refuse_unplayable
    from upcycle.task_documents import tasksets_in
    from upcycle.tasks import Taskset

    if path.suffix == ".py":
        with naming_lines():
            found = tasksets_in(Taskset, path)
    else:
        taskset = Taskset.load(path)
        found = {taskset.name: taskset}
    refuse_unplayable(path, found.values())
    return found


@contextmanager
def naming_lines(hint: str = "") -> Iterator[None]:
    """What a file of the user raises while it is loaded names file and line. hint: for what is no error of
    ours. Raises UpcycleError of any kind."""
    try:
        yield
    except UpcycleError as error:
        if place := place_of(error):
            error.message = f"{place}: {error.message}"
        raise
    except Exception as error:
        place = place_of(error)
        said = f"{place}: {described(error)}" if place else described(error)
        raise DefinitionError(said, hint or _way_out(error)) from error


def _way_out(error: Exception) -> str:
    """Of a module that is missing; "" of what only its author can mend."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    return f"install what has {error.name!r} for {sys.executable}, or write the file beside it"
