"""Tasksets: ordered tasks, in memory and in files. A digest of their content identifies them.

Files are `tasks.py`, `.json`, `.jsonl` and `.csv` (upcycle.task_tables).
JSON: {"name", "split", "environment"?, "tasks": [row…]}. JSONL:
the same object without "tasks" on the first line, then one row per line. A row is {"slug", "scenario",
"args", "family", "environment"?}; split is train, held_out, audit or unassigned.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, get_args

from upcycle.errors import TasksetInvalid, UnknownName
from upcycle.results import Run
from upcycle.revision_names import REVISION_SUFFIX, exact_name, plain_name
from upcycle.shipped import only_measures
from upcycle.task_rows import EnvironmentRef, Task, check_name, task_digest
from upcycle.task_tables import tasks_to_table

if TYPE_CHECKING:
    # Clients: never imported where an environment's file imports this module.
    from upcycle.agents import Agent
    from upcycle.api.taskset.v1 import taskset_pb2
    from upcycle.environment.core import Environment
    from upcycle.evaluation import Job
    from upcycle.importers.tasks import Columns
    from upcycle.platform import Addresses, Platform
    from upcycle.runtimes import PlayRuntime
    from upcycle.scenario import Scenario

__all__ = [
    "MAX_TASKS",
    "EnvironmentRef",
    "Split",
    "Task",
    "Taskset",
    "exact_name",
    "plain_name",
    "task_digest",
    "taskset_digest",
]

_READ_TIMEOUT_S: Final = 120.0
_SHOWN: Final = 5

Choice = Callable[[Task], object] | Iterable[str]
"""Which tasks: a function of the task, or their slugs."""
Split = Literal["train", "held_out", "audit", "unassigned"]

KEPT_APART: Final = ("held_out", "audit")
"""Splits whose tasks never train."""

# A limit of the platform. It is checked here too, so that the author sees the error before uploading.
MAX_TASKS = 100_000


@dataclass(frozen=True)
class Taskset:
    """Tasks in order, with unique slugs, all of one environment.

    split: "train", "held_out" (for the gate), "audit" (neither trains nor gates: it is measured at the end of
    a run, a few times, to check what the gate says), or "unassigned" (no run trains on the tasks and no gate
    uses them, until another taskset puts them into one of the other splits).
    """

    name: str
    tasks: tuple[Task, ...] = field(repr=False)
    split: Split = "train"

    def __init__(self, name: str, tasks: Iterable[Task], split: Split = "train") -> None:
        object.__setattr__(self, "name", _check_taskset_name(name))
        object.__setattr__(self, "tasks", tuple(tasks))
        object.__setattr__(self, "split", split)
        self._check()

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def environment(self) -> EnvironmentRef:
        """The environment that all its tasks share."""
        return self.tasks[0].environment

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) over the split and the ordered task digests."""
        return taskset_digest(self.split, (task.digest for task in self.tasks))

    @classmethod
    def load(cls, path: Path | str, name: str | None = None) -> "Taskset":
        """From a tasks.py (its Taskset, Task and list-of-Task attributes), .json, .jsonl or .csv file.

        name: which taskset of a .py file, if it has several; the name to give to bare tasks.
        Raises TasksetInvalid or UnknownName.
        """
        from upcycle.task_documents import load_taskset

        return load_taskset(cls, Path(path), name)

    from_file = load

    @classmethod
    def from_dataset(
        cls,
        dataset: Iterable[Any],
        name: str,
        *,
        scenario: "Scenario | str",
        environment: "Environment | EnvironmentRef | None" = None,
        split: Split = "train",
        **columns: Unpack["Columns"],
    ) -> "Taskset":
        """One task for each row of a list of dictionaries, a `datasets.Dataset`, a `csv.DictReader`.

        environment: of a scenario that is given by name. columns: `arguments`, {argument: column} or a
        function of the row, by default columns are arguments of the same name; `ids` and `families`, a column
        or a function of the row. Raises TasksetInvalid, which names the row, and UnknownName.
        """
        from upcycle.importers.rows import rows_of
        from upcycle.importers.tasks import RowTasks, target_of

        made = RowTasks(target_of(scenario, environment), **columns)
        return cls(name, made.read(rows_of(dataset), MAX_TASKS), split)

    @classmethod
    async def from_api(cls, name: str, *, runtime: "Platform | Addresses | None" = None) -> "Taskset":
        """The taskset that a platform has under a name, its newest revision, or one (`incidents@2`). Raises
        RemoteNotFound and PlatformNotFound."""
        from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest
        from upcycle.platform import connected
        from upcycle.rpc import remote_errors

        async with connected(runtime) as platform:
            with remote_errors(f"read taskset {name!r}"):
                request = GetTasksetRequest(name=name)
                found = await platform.tasksets.GetTaskset(request, timeout=_READ_TIMEOUT_S)
        return cls.from_message(found.taskset)

    @classmethod
    def from_message(cls, message: "taskset_pb2.Taskset") -> "Taskset":
        """What the platform's API shows of a taskset. Raises TasksetInvalid."""
        from upcycle.api.common.v1 import common_pb2

        source = message.environment
        environment = EnvironmentRef(source.name, path=source.python.path, url=source.tcp.url)
        splits: dict[int, Split] = {
            common_pb2.SPLIT_HELD_OUT: "held_out",
            common_pb2.SPLIT_AUDIT: "audit",
            common_pb2.SPLIT_UNASSIGNED: "unassigned",
        }
        tasks = [
            Task(environment, row.scenario, row.args_json or "{}", row.slug, row.family or "default")
            for row in message.tasks
        ]
        return cls(message.name, tasks, splits.get(message.split, "train"))

    def save(self, path: Path | str) -> None:
        """Write as .jsonl (one task per line, after a header line), .json or .csv. An environment in the
        folder of the file, or below, is named by its path from there."""
        path = Path(path)
        where = self.environment.written_to(path.parent)
        header = {"name": self.name, "split": self.split, "environment": where.to_json()}
        rows = [
            {key: value for key, value in task.to_json().items() if key != "environment"} for task in self
        ]
        if path.suffix == ".jsonl":
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [header, *rows]))
        elif path.suffix == ".json":
            path.write_text(json.dumps({**header, "tasks": rows}, ensure_ascii=False, indent=1) + "\n")
        elif path.suffix == ".csv":
            path.write_text(tasks_to_table(self.split, self, where), newline="")
        else:
            raise TasksetInvalid(
                f"{path}: cannot write a taskset as {path.suffix!r}", "use .json, .jsonl or .csv"
            )

    to_file = save

    def filter(self, choice: Choice, *, name: str | None = None) -> "Taskset":
        """The tasks that are chosen, in order, in the same split.

        choice: slugs, or a function of a task: `filter(lambda task: task.family == "database")`. Raises
        UnknownName for a slug that no task has, and TasksetInvalid where none is left.
        """
        chosen = self._chosen(choice)
        return Taskset(name or self.name, [task for task in self if task.slug in chosen], self.split)

    def exclude(self, choice: Choice, *, name: str | None = None) -> "Taskset":
        """The tasks that are not chosen; otherwise as `filter`."""
        chosen = self._chosen(choice)
        return Taskset(name or self.name, [task for task in self if task.slug not in chosen], self.split)

    async def run(
        self,
        agent: "Agent",
        *,
        runtime: "Platform | Addresses | PlayRuntime | None" = None,
        group: int | None = None,
        max_concurrent: int | None = None,
        job: "Job | None" = None,
        trainable: bool = False,
        episode_deadline_s: int | None = None,
    ) -> list[Run]:
        """Play every task with an agent, `group` times each; the runs are also added to the job.

        runtime: for a model of a platform, a Platform or its Addresses, by default the one that is found; for
        an agent of others, where its environments run (upcycle.runtimes), by default each episode in a
        process of its own. group: by default the job's, else 1. max_concurrent: episodes in flight at once,
        at least `group`. trainable: a training run of the same model and taskset may train on the graded
        groups, on each once. episode_deadline_s: how long an episode may take, by default 120; no tool's
        `timeout_s` is above it. Raises as `evaluate` does.
        """
        plays = group if group is not None else job.group if job is not None else 1
        runs = await agent.evaluate(
            self,
            group=plays,
            runtime=runtime,
            label=job.label if job is not None else "",
            trainable=trainable,
            max_concurrent=max_concurrent,
            episode_deadline_s=episode_deadline_s,
        )
        if job is not None:
            job.runs.extend(runs)
        return runs

    def _chosen(self, choice: Choice) -> set[str]:
        if callable(choice):
            return {task.slug for task in self if choice(task)}
        slugs = {choice} if isinstance(choice, str) else set(choice)
        if unknown := sorted(slugs - {task.slug for task in self}):
            known = [task.slug for task in self.tasks]
            near = get_close_matches(unknown[0], known, n=1)
            there = f"{', '.join(known[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}"
            hint = f"did you mean {near[0]!r}?" if near else f"it has {there}"
            raise UnknownName(f"taskset {self.name!r} has no task {unknown[0]!r}", hint)
        return slugs

    def _check(self) -> None:
        if self.split not in get_args(Split):
            raise TasksetInvalid(
                f"taskset {self.name!r}: split {self.split!r} is unknown",
                "use 'train', 'held_out' or 'audit', or 'unassigned' for none of them",
            )
        if not 0 < len(self.tasks) <= MAX_TASKS:
            raise TasksetInvalid(
                f"taskset {self.name!r} has {len(self.tasks)} tasks", f"use 1 to {MAX_TASKS}"
            )
        seen: set[str] = set()
        for task in self.tasks:
            if not isinstance(task, Task):
                raise TasksetInvalid(
                    f"taskset {self.name!r}: {task!r} is not a Task", "make it with scenario.task(…)"
                )
            if task.slug in seen:
                raise TasksetInvalid(
                    f"taskset {self.name!r}: slug {task.slug!r} occurs twice", "make slugs unique"
                )
            if task.environment != self.tasks[0].environment:
                raise self._mixed(task)
            seen.add(task.slug)
        self._check_split()

    def _mixed(self, task: Task) -> TasksetInvalid:
        """The refusal of a task of another environment than the first one's."""
        own, other = task.environment, self.tasks[0].environment
        if own.name == other.name:
            places = " and ".join(one.path or one.url or "nowhere" for one in (other, own))
            return TasksetInvalid(
                f"taskset {self.name!r}: its tasks are of two environments called {own.name!r}: {places}",
                "give one of them another name, and make one taskset per environment",
            )
        return TasksetInvalid(
            f"taskset {self.name!r}: task {task.slug!r} is of environment {own.name!r}, "
            f"others of {other.name!r}",
            "make one taskset per environment",
        )

    def _check_split(self) -> None:
        for task in self.tasks if self.split == "train" else ():
            if only_measures(task.environment.name, task.scenario):
                raise TasksetInvalid(
                    f"taskset {self.name!r}: task {task.slug!r} is of benchmark {task.environment.name}",
                    "its tasks only measure: make the split 'held_out'",
                )


def taskset_digest(split: str, task_digests: Iterable[str]) -> str:
    """sha256 (hex) over the split (such as "train" or "held_out") and the task digests, in order."""
    return hashlib.sha256("\n".join([split, *task_digests]).encode()).hexdigest()


def _check_taskset_name(value: Any) -> str:
    name = check_name("taskset name", value)
    if REVISION_SUFFIX.search(name):
        raise TasksetInvalid(
            f"taskset name {name!r:.80} ends like a revision", "leave the suffix out: the platform adds it"
        )
    return name
