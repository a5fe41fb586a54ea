"""Which tasks of a taskset `upcycle eval` plays: all of them, unless a flag chooses some."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Final

from cyclopts import Parameter

from upcycle.cli.output import human
from upcycle.cli.tasksets import TasksetSource
from upcycle.environment.deployed import deployed_path
from upcycle.errors import UpcycleError
from upcycle.tasks import Task, Taskset, plain_name
from upcycle.wording import amount

_FIELDS: Final = ("slug", "family", "scenario")


class UnclearChoice(UpcycleError, ValueError):
    """Flags that choose no task, or contradict each other."""

    kind = "unclear_choice"


@Parameter(name="*", group="Tasks")
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChoice:
    """Which tasks are played."""

    full: Annotated[bool, Parameter(negative="")] = False
    """every task. It is the default and may be left out: one solved task is 100 %, and says nothing of the
    others."""
    first: Annotated[bool, Parameter(negative="")] = False
    """the first task alone, to see whether it works; the report has no interval then."""
    limit: int | None = None
    """at most so many tasks, the first ones that the other flags leave."""
    task_ids: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = ()
    """these tasks, by slug; several with commas or spaces between them."""
    filter_: Annotated[tuple[str, ...], Parameter(name="--filter", negative="")] = ()
    """FIELD=PATTERN: tasks whose slug, family, scenario, or argument of that name is so; * stands for any
    text. May be repeated: all must hold."""
    remote: Annotated[bool, Parameter(negative="")] = False
    """play on the platform. It is the default for registered models and may be left out. With --gateway the
    platform answers, and the episodes play here."""
    deployed: str = ""
    """source digest that `upcycle deploy` printed: the environment of TASKS is played as it was sent."""

    @property
    def is_asked(self) -> bool:
        """Whether some tasks may be left out."""
        return self.first or self.limit is not None or bool(self.task_ids or self.filter_)

    def check(self) -> None:
        """Raises UnclearChoice, and SourceRefused for what is no source digest."""
        chosen = "--first" if self.first else "a choice of tasks"
        if self.full and self.is_asked:
            raise UnclearChoice(f"--full plays every task, and {chosen} was given too", "give one of them")
        if self.first and self.limit is not None:
            raise UnclearChoice(f"--first is --limit 1, and --limit {self.limit} was given too", "give one")
        if self.limit is not None and self.limit < 1:
            raise UnclearChoice(f"--limit is {self.limit}", "give at least 1")
        if self.deployed:
            deployed_path(self.deployed)
        for one in self.filter_:
            if not one.partition("=")[0] or "=" not in one:
                raise UnclearChoice(
                    f"--filter {one!r} is not FIELD=PATTERN", "such as --filter family=database"
                )

    def check_whole(self, trainable: bool) -> None:
        """Raises UnclearChoice where a training run may draw the groups of a whole taskset."""
        if trainable and self.is_asked:
            raise UnclearChoice(
                "--trainable offers the groups of a whole taskset, and some of its tasks were chosen",
                "leave one of them out",
            )

    def of(self, taskset: Taskset) -> Taskset:
        """The chosen tasks in their order and on their side, under a name made of their content; the taskset
        itself where none is left out. Raises UnclearChoice where none is left, UnknownName for a slug."""
        slugs = [slug for one in self.task_ids for slug in one.split(",") if slug]
        named = taskset.filter(slugs) if slugs else taskset
        kept = [task for task in named if all(_holds(one, task) for one in self.filter_)]
        kept = kept[: 1 if self.first else self.limit]
        if not kept:
            raise UnclearChoice(
                f"no task of {taskset.name!r} is left by --filter {' --filter '.join(self.filter_)}",
                f"its families are {_some({task.family for task in taskset})}",
            )
        if len(kept) == len(taskset):
            return taskset
        part = Taskset("part", kept, taskset.split)
        return Taskset(f"{plain_name(taskset.name)[:150]}-part-{part.digest[:12]}", kept, taskset.split)

    async def source_of(self, source: TasksetSource) -> TasksetSource:
        """The source with the chosen tasks alone, of the environment that was sent where one is named; as it
        is where neither is asked for. Raises UnclearChoice and AmbiguousTaskset."""
        if self.deployed:
            sent = source.as_sent(self.deployed)
            source = TasksetSource(sent.name, tuple(one for one in sent.defined if one.name == sent.name))
        if not self.is_asked:
            return source
        defined = [one for one in source.defined if one.name == source.name]
        whole = defined[0] if defined else await Taskset.from_api(source.name)
        part = self.of(whole)
        if part is whole:
            return source
        said = f"{len(part)} of the {amount(len(whole), 'task')} of {whole.name}"
        human().print(said, markup=False, soft_wrap=True)
        return TasksetSource(part.name, (part,))


NO_CHOICE: Final = TaskChoice()


def _holds(condition: str, task: Task) -> bool:
    name, _, pattern = condition.partition("=")
    values = {**task.args, **{one: getattr(task, one) for one in _FIELDS}}
    return name in values and fnmatchcase(str(values[name]), pattern)


def _some(names: set[str]) -> str:
    shown = sorted(names)
    return ", ".join(shown[:8]) + (", …" if len(shown) > 8 else "")
