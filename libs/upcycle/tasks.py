"""Tasks and tasksets: immutable rows of what to run, identified by their content.

`task.digest` depends on environment name, scenario and arguments only, so the same task has the same digest
in every taskset and on every machine; `taskset.digest` covers the ordered task digests and the split.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from upcycle.errors import TasksetInvalid, UnknownName

if TYPE_CHECKING:
    from upcycle.agents import Agent
    from upcycle.api.taskset.v1.taskset_pb2 import Taskset as WireTaskset
    from upcycle.evaluation import Job, Run
    from upcycle.scenario import Scenario

Split = Literal["train", "held_out", "unassigned"]

# Limits of the platform, checked here first so that a taskset fails on the author's machine.
MAX_ARGS_BYTES = 64 * 1024
MAX_TASKS = 100_000
MAX_NAME_CHARS = 200
DEFAULT_FAMILY = "default"
# `name@2` is the second revision of `name`: the platform numbers them.
REVISION_SUFFIX = re.compile(r"@\d+$")

_ROW_FIELDS = frozenset({"slug", "scenario", "args", "family", "environment"})


@dataclass(frozen=True, slots=True)
class EnvironmentRef:
    """Where a task's environment is: a Python file (`path`) or a served control channel (`url`,
    tcp://host:port).
    """

    name: str
    path: str = ""
    url: str = ""

    def to_json(self) -> dict[str, str]:
        """Without the empty fields."""
        return {
            key: value
            for key, value in (("name", self.name), ("path", self.path), ("url", self.url))
            if value
        }


@dataclass(frozen=True, slots=True)
class Task:
    """One runnable task. args_json: canonical JSON of the scenario's arguments, at most 64 KiB."""

    environment: EnvironmentRef
    scenario: str
    args_json: str = "{}"
    slug: str = ""
    family: str = DEFAULT_FAMILY

    def __post_init__(self) -> None:
        size = len(self.args_json.encode())
        if size > MAX_ARGS_BYTES:
            raise TasksetInvalid(
                f"task {self.slug or self.scenario!r}: arguments are {size} bytes, limit {MAX_ARGS_BYTES}",
                "pass a reference (a path, a seed) instead of the data",
            )
        object.__setattr__(self, "args_json", canonical_json(_arguments(self.args_json, self.slug)))
        if not self.slug:
            object.__setattr__(self, "slug", f"{self.scenario}-{self.digest[:12]}")
        for what, value in (("slug", self.slug), ("scenario", self.scenario), ("family", self.family)):
            _check_name(what, value)

    @classmethod
    def create(
        cls, scenario: "Scenario", args: Mapping[str, Any], *, slug: str | None, family: str | None
    ) -> "Task":
        """A task of a declared scenario. Raises TasksetInvalid when the arguments are not JSON."""
        environment = EnvironmentRef(scenario.environment.name, path=scenario.environment.source)
        family = family or scenario.name
        return cls(environment, scenario.name, canonical_json(args), slug or "", family)

    @property
    def args(self) -> dict[str, Any]:
        """A fresh copy of the scenario's arguments."""
        return dict(json.loads(self.args_json))

    @property
    def digest(self) -> str:
        """sha256 (hex) over environment name, scenario and arguments."""
        return task_digest(self.environment.name, self.scenario, self.args_json)

    def to_json(self) -> dict[str, Any]:
        """One row of a JSON or JSONL taskset."""
        return {
            "slug": self.slug,
            "scenario": self.scenario,
            "args": self.args,
            "family": self.family,
            "environment": self.environment.to_json(),
        }


@dataclass(frozen=True)
class Taskset:
    """Tasks in order, with unique slugs, all of one environment.

    split: "train", "held_out", or "unassigned" (the tasks neither train in runs nor judge a candidate, until
    another taskset decides).
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
        """From a tasks.py (its Taskset, Task and list-of-Task attributes), .json or .jsonl file.

        name: which taskset of a .py file, if it has several; the name to give to bare tasks.
        Raises TasksetInvalid or UnknownName.
        """
        from upcycle.taskset_files import load_taskset

        return load_taskset(Path(path), name)

    def save(self, path: Path | str) -> None:
        """Write as .jsonl (one task per line, after a header line) or .json."""
        from upcycle.taskset_files import save_taskset

        save_taskset(self, Path(path))

    async def run(
        self, agent: "Agent", *, runtime: Any = None, job: "Job | None" = None, trainable: bool = False
    ) -> "list[Run]":
        """Play every task with an agent, `job.group` times each; the runs are also added to the job.

        runtime: where (a Platform or its Addresses); by default the platform that is found. trainable: a
        running training run of the same model and taskset may draw the groups, each once.
        """
        from upcycle.evaluation import evaluate

        group, label = (job.group, job.label) if job is not None else (1, "")
        runs = await evaluate(self, agent, group=group, runtime=runtime, label=label, trainable=trainable)
        if job is not None:
            job.runs.extend(runs)
        return runs

    def to_wire(self) -> "WireTaskset":
        """As the protobuf message that `RegisterTaskset` takes."""
        from upcycle.wire import taskset_to_wire

        return taskset_to_wire(self)

    def _check(self) -> None:
        if self.split not in get_args(Split):
            raise TasksetInvalid(
                f"taskset {self.name!r}: split {self.split!r} is unknown",
                "use 'train' or 'held_out', or 'unassigned' for neither",
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
                raise TasksetInvalid(
                    f"taskset {self.name!r}: task {task.slug!r} is of environment {task.environment.name!r}, "
                    f"others of {self.tasks[0].environment.name!r}",
                    "make one taskset per environment",
                )
            seen.add(task.slug)


def task_digest(environment: str, scenario: str, args_json: str) -> str:
    """sha256 (hex) of a task's content. args_json: canonical JSON.

    Equal numbers are equal content: 7 and 7.0 are one task, so they cannot be on two sides of a split.
    """
    content = [environment, scenario, _whole_numbers(json.loads(args_json))]
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _whole_numbers(value: Any) -> Any:
    """The value with floats that are whole written as integers, as far as a float tells integers apart."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(one) for key, one in value.items()}
    return [_whole_numbers(one) for one in value] if isinstance(value, list) else value


def taskset_digest(split: str, task_digests: Iterable[str]) -> str:
    """sha256 (hex) over the split ("train", "held_out" or "unassigned") and the task digests in order."""
    return hashlib.sha256("\n".join([split, *task_digests]).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, UTF-8. Raises TasksetInvalid for what JSON cannot
    carry.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TasksetInvalid(
            f"arguments are not JSON: {error}", "use str, numbers, bool, lists, dicts"
        ) from error


def task_from_json(row: Any, environment: EnvironmentRef | None = None) -> Task:
    """The inverse of `Task.to_json`; unknown fields are refused. Raises TasksetInvalid."""
    if not isinstance(row, dict):
        raise TasksetInvalid(f"task row {row!r:.80} is not an object")
    unknown = sorted(set(row) - _ROW_FIELDS)
    if unknown:
        raise TasksetInvalid(
            f"task row has unknown field {unknown[0]!r}", f"use {', '.join(sorted(_ROW_FIELDS))}"
        )
    where = row.get("environment")
    if where is not None:
        environment = environment_from_json(where)
    if environment is None or "scenario" not in row:
        raise TasksetInvalid(f"task row {row!r:.80} needs 'scenario' and 'environment'")
    return Task(
        environment,
        row["scenario"],
        canonical_json(row.get("args", {})),
        row.get("slug", ""),
        row.get("family", DEFAULT_FAMILY),
    )


def environment_from_json(row: Any) -> EnvironmentRef:
    """From `{"name", "path"}` or `{"name", "url"}`. Raises TasksetInvalid."""
    if not isinstance(row, dict) or not row.get("name") or set(row) - {"name", "path", "url"}:
        raise TasksetInvalid(f"environment {row!r:.80} is malformed", "use {'name': …, 'path': …} or 'url'")
    return EnvironmentRef(row["name"], row.get("path", ""), row.get("url", ""))


def _arguments(args_json: str, slug: str) -> dict[str, Any]:
    try:
        value = json.loads(args_json)
    except ValueError as error:
        raise TasksetInvalid(f"task {slug!r}: arguments are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TasksetInvalid(f"task {slug!r}: arguments are a {type(value).__name__}, not an object")
    return value


def _check_name(what: str, value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.strip()
        or len(value) > MAX_NAME_CHARS
        or not value.isprintable()
    ):
        raise TasksetInvalid(
            f"{what} {value!r:.80} is not printable text of 1 to {MAX_NAME_CHARS} characters"
        )
    return value


def _check_taskset_name(value: Any) -> str:
    name = _check_name("taskset name", value)
    if REVISION_SUFFIX.search(name):
        raise TasksetInvalid(
            f"taskset name {name!r:.80} ends like a revision",
            "leave the suffix out: the platform adds it",
        )
    return name


def plain_name(taskset: str) -> str:
    """The name of a taskset without its revision: `incidents@2` is a revision of `incidents`."""
    return REVISION_SUFFIX.sub("", taskset)


def exact_name(taskset: str, revision: int) -> str:
    """The name of one revision; the plain name where the platform numbers none (0)."""
    return f"{taskset}@{revision}" if revision else taskset


def named(tasksets: Mapping[str, Taskset], name: str | None, path: Path) -> Taskset:
    """The one taskset asked for. Raises UnknownName when it is missing or the choice is not clear."""
    if name is None and len(tasksets) == 1:
        return next(iter(tasksets.values()))
    if name is not None and name in tasksets:
        return tasksets[name]
    known = ", ".join(sorted(tasksets)) or "none"
    raise UnknownName(
        f"{path} has no taskset {name!r}" if name else f"{path} has several tasksets", f"it has {known}"
    )
