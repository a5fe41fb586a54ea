"""Harbor task directories as the scenario, the tool and the tasks of an environment."""

import base64
import shlex
import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from upcycle.environment.core import Environment
from upcycle.errors import ArgumentsInvalid, ToolFailed
from upcycle.importers.errors import ImportRefused
from upcycle.importers.harbor.container import in_a_container, installed_engine
from upcycle.importers.harbor.image_folder import in_a_folder
from upcycle.importers.harbor.place import TaskPlace
from upcycle.importers.harbor.reading import SOLVE, ContainerImage, HarborTask, read_task
from upcycle.scenario import Reference
from upcycle.tasks import Split, Taskset

_DONE: Final = "The task is done."
_END: Final = "END_OF_THE_FILE"


def offer(
    env: Environment,
    folder: str,
    *,
    split: Split = "held_out",
    ignore_run: bool = False,
    skip_refused: bool = False,
    engine: str = "",
) -> Taskset:
    """The task directories below a folder beside the environment's file, as a taskset of `env`.

    Name the folder in the environment's `data`, so that its files count as its source. ignore_run: this
    machine has what the RUN lines of Dockerfiles make. skip_refused: leave tasks out that need more, and
    say so. engine: `docker` or `podman`: each episode plays in a container of the task's image, which
    `python -m upcycle.importers.harbor FOLDER` builds; where it is empty, a folder stands for the image.
    Raises ImportRefused.

        env = Environment("harbor", data=["tasks"])
        tasks = offer(env, "tasks")
    """
    base = Path(env.source).parent / folder
    program = installed_engine(engine) if engine else ""
    found = dict(_read(base, ignore_run=ignore_run, skip_refused=skip_refused, in_container=bool(engine)))
    if not found:
        raise ImportRefused(f"{base} has no task that is played here", "a task is a folder with a task.toml")
    offered = _Offered(found, program)
    env.tool("shell")(offered.shell)
    scenario = env.scenario("task")(offered.task)
    scenario.gold(offered.solved)
    made = [
        scenario.task(slug=one.name, family=one.family, name=one.name, content=one.content)
        for one in found.values()
    ]
    return Taskset(f"{env.name}-{folder}", made, split)


class _Offered:
    """An episode is a process of its own: its folder is the state of this object."""

    def __init__(self, tasks: dict[str, HarborTask], engine: str) -> None:
        self._tasks, self._engine = tasks, engine
        self._open: list[TaskPlace] = []

    def shell(self, command: str) -> str:
        """Run a command with bash in the task's folder, at most 25 seconds; the end of what it prints.

        Args:
            command: for bash; files stay from one command to the next, variables do not
        """
        if not self._open:
            raise ToolFailed("no task is open")
        return self._open[-1].shell(command)

    def task(self, name: str, content: str = "") -> Generator[Any, Any, None]:
        """Do what a task directory asks; its tests decide.

        Args:
            name: of the directory
            content: a digest of it; a directory that has changed is refused
        """
        task = self._named(name, content)
        with opened(task, self._engine) as place:
            self._open.append(place)
            try:
                yield task.instruction
                yield place.verdict()
            finally:
                self._open.remove(place)

    def solved(self, name: str, content: str = "") -> Reference:
        """Its solution, run with the tool; nothing where it has none."""
        task = self._named(name, content)
        if SOLVE not in task.solution:
            return Reference("")
        commands = [*_placed(task), _solve(task)]
        return Reference(_DONE, tuple(("shell", {"command": one}) for one in commands))

    def _named(self, name: str, content: str) -> HarborTask:
        if name not in self._tasks:
            raise ArgumentsInvalid(f"no task {name!r}", f"it has {', '.join(sorted(self._tasks)[:20])}")
        task = self._tasks[name]
        if content not in ("", task.content):
            raise ArgumentsInvalid(f"the directory of task {name!r} has changed", "register the tasks again")
        return task


def opened(task: HarborTask, engine: str = "") -> AbstractContextManager[TaskPlace]:
    """The place of one episode, while it lasts. engine: its program, for a task that was read for it."""
    if isinstance(task.image, ContainerImage):
        return in_a_container(task, task.image, engine)
    return in_a_folder(task, task.image)


def _read(
    base: Path, *, ignore_run: bool, skip_refused: bool, in_container: bool
) -> Iterator[tuple[str, HarborTask]]:
    for settings in sorted(base.glob("*/task.toml")):
        try:
            yield (
                settings.parent.name,
                read_task(settings.parent, ignore_run=ignore_run, in_container=in_container),
            )
        except ImportRefused as error:
            if not skip_refused:
                raise
            sys.stderr.write(f"left out: {error}\n")


def _placed(task: HarborTask) -> Iterator[str]:
    """Commands that write the files of the solution. Text stands in the command, whose paths are led below
    the folder."""
    for path, file in task.solution.items():
        place = shlex.quote(f"/solution/{path}")
        folder = f"mkdir -p $(dirname {place}) && "
        try:
            text = file.content.decode().removesuffix("\n")
            yield f"{folder}cat > {place} <<'{_END}'\n{text}\n{_END}"
        except UnicodeDecodeError:
            yield f"{folder}echo {base64.b64encode(file.content).decode()} | base64 -d > {place}"


def _solve(task: HarborTask) -> str:
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in task.solution_variables.items())
    return f"{variables} bash /solution/{SOLVE}".strip()
