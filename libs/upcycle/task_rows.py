"""One runnable task as an immutable row, identified by its content.

`task.digest` depends on environment name, scenario and arguments only, so the same task has the same digest
in every taskset and on every machine.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from upcycle.environment.deployed import DEPLOYED
from upcycle.errors import TasksetInvalid

# Limits of the platform, checked here first so that a taskset fails on the author's machine.
MAX_ARGS_BYTES = 64 * 1024
MAX_ARGS_DEPTH = 100
MAX_NAME_CHARS = 200
MAX_CLAIMED = 10_000  # digests in one ClaimTasks
DEFAULT_FAMILY = "default"

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

    def read_from(self, folder: Path) -> "EnvironmentRef":
        """As a file in `folder` means it: a relative path begins there."""
        if not self.path or self.path.startswith(DEPLOYED):
            return self
        return replace(self, path=os.path.normpath(folder.absolute() / self.path))

    def written_to(self, folder: Path) -> "EnvironmentRef":
        """As a file in `folder` says it: an environment there or below by its relative path, so that the
        folder may be moved and shared."""
        given, home = Path(self.path), folder.resolve()
        place = given.parent.resolve() / given.name
        if not given.is_absolute() or not place.is_relative_to(home):
            return self
        return replace(self, path=place.relative_to(home).as_posix())


@dataclass(frozen=True, slots=True)
class Task:
    """One runnable task. args_json: canonical JSON of the scenario's arguments, at most 64 KiB. slug: its
    name, unique in a taskset; family: what the gate counts regressions over. Raises TasksetInvalid."""

    environment: EnvironmentRef
    scenario: str
    args_json: str = "{}"
    slug: str = ""
    family: str = DEFAULT_FAMILY

    def __post_init__(self) -> None:
        object.__setattr__(self, "args_json", canonical_args(self.args_json, self.slug or self.scenario))
        if not self.slug:
            object.__setattr__(self, "slug", f"{self.scenario}-{self.digest[:12]}")
        for what, value in (("slug", self.slug), ("scenario", self.scenario), ("family", self.family)):
            check_name(what, value)

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


def task_digest(environment: str, scenario: str, args_json: str) -> str:
    """sha256 (hex) of a task's content. args_json: canonical JSON.

    Equal numbers are equal content: 7 and 7.0 are one task, so they cannot be on two sides of a split.
    """
    content = [environment, scenario, json.loads(args_json, parse_float=_number)]
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def canonical_json(value: Any) -> str:
    """One spelling per value: sorted keys, no spaces, UTF-8. Raises TasksetInvalid for what JSON cannot
    carry.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()  # "\\ud800" is JSON, and half a character
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise TasksetInvalid(
            f"JSON cannot carry this: {error}", "use str, numbers, bool, lists, dicts"
        ) from error


def not_json(arguments: Mapping[str, Any]) -> str:
    """The name of the first argument that JSON cannot carry; "" where it carries each."""
    for name, value in arguments.items():
        try:
            canonical_json(value)
        except TasksetInvalid:
            return name
    return ""


def task_from_json(row: Any, environment: EnvironmentRef | None = None, folder: Path | None = None) -> Task:
    """The inverse of `Task.to_json`; unknown fields are refused. folder: where a relative path of its own
    environment begins. Raises TasksetInvalid."""
    if not isinstance(row, dict):
        raise TasksetInvalid(f"task row {row!r:.80} is not an object")
    unknown = sorted(set(row) - _ROW_FIELDS)
    if unknown:
        raise TasksetInvalid(
            f"task row has unknown field {unknown[0]!r}", f"use {', '.join(sorted(_ROW_FIELDS))}"
        )
    where = row.get("environment")
    if where is not None:
        environment = environment_from_json(where, folder)
    if environment is None or "scenario" not in row:
        raise TasksetInvalid(f"task row {row!r:.80} needs 'scenario' and 'environment'")
    return Task(
        environment,
        row["scenario"],
        canonical_json(row.get("args", {})),
        row.get("slug", ""),
        row.get("family", DEFAULT_FAMILY),
    )


def environment_from_json(row: Any, folder: Path | None = None) -> EnvironmentRef:
    """From `{"name", "path"}` or `{"name", "url"}`. folder: where a relative path begins. Raises
    TasksetInvalid."""
    texts = isinstance(row, dict) and all(isinstance(value, str) for value in row.values())
    if not texts or not row.get("name") or set(row) - {"name", "path", "url"}:
        raise TasksetInvalid(f"environment {row!r:.80} is malformed", "use {'name': …, 'path': …} or 'url'")
    named = EnvironmentRef(row["name"], row.get("path", ""), row.get("url", ""))
    return named.read_from(folder) if folder is not None else named


def canonical_args(args_json: str, task: str) -> str:
    """The arguments of `task` in canonical JSON. Raises TasksetInvalid naming the task."""
    size = len(args_json.encode(errors="replace"))
    if size > MAX_ARGS_BYTES:
        raise TasksetInvalid(
            f"task {task!r}: arguments are {size} bytes, limit {MAX_ARGS_BYTES}",
            "pass a reference (a path, a seed) instead of the data",
        )
    try:
        value = json.loads(args_json)
        canonical = canonical_json(value)
    except (ValueError, RecursionError) as error:
        raise TasksetInvalid(f"task {task!r}: arguments are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TasksetInvalid(f"task {task!r}: arguments are of type {type(value).__name__}, not an object")
    level, depth = list(value.values()), 0
    while level := [one for one in level if isinstance(one, dict | list)]:
        level = [one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer)]
        depth += 1
    if depth > MAX_ARGS_DEPTH:
        raise TasksetInvalid(f"task {task!r}: arguments are nested {depth} deep, limit {MAX_ARGS_DEPTH}")
    return canonical


def tasks_listed(value: Any) -> set[Task]:
    """Of a list that holds tasks alone; else none."""
    is_list = isinstance(value, list | tuple) and all(isinstance(item, Task) for item in value)
    return set(value) if is_list else set()


def check_name(what: str, value: Any) -> str:
    """A name of a task or a taskset as it is. Raises TasksetInvalid."""
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
