"""Tasksets on disk: `tasks.py`, `.json`, `.jsonl`.

JSON:  {"name", "split", "environment"?, "tasks": [row…]}.   JSONL: the same object without "tasks" on the
first line, then one row per line. A row is {"slug", "scenario", "args", "family", "environment"?}; split is
train, held_out or unassigned.
"""

import json
from pathlib import Path
from typing import Any

from upcycle.environment.loading import load_module
from upcycle.errors import TasksetInvalid, UnknownName
from upcycle.tasks import Task, Taskset, environment_from_json, named, task_from_json

_HEADER_FIELDS = frozenset({"name", "split", "environment", "tasks"})


def load_taskset(path: Path, name: str | None) -> Taskset:
    """See `Taskset.load`."""
    if path.suffix == ".py":
        return _from_python(path, name)
    if not path.is_file():
        raise UnknownName(f"no such file: {path}", "give a .py, .json or .jsonl file")
    if path.suffix == ".json":
        return _from_document(_parse(path.read_text(), str(path)), path, name)
    if path.suffix == ".jsonl":
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        rows = [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
        has_header = bool(rows) and isinstance(rows[0], dict) and "scenario" not in rows[0]
        header = rows[0] if has_header else {}
        return _from_document({**header, "tasks": rows[1:] if has_header else rows}, path, name)
    raise TasksetInvalid(f"{path}: cannot load a taskset from {path.suffix!r}", "use .py, .json or .jsonl")


def save_taskset(taskset: Taskset, path: Path) -> None:
    """See `Taskset.save`."""
    header = {"name": taskset.name, "split": taskset.split, "environment": taskset.environment.to_json()}
    rows = [{key: value for key, value in task.to_json().items() if key != "environment"} for task in taskset]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [header, *rows]))
    elif path.suffix == ".json":
        path.write_text(json.dumps({**header, "tasks": rows}, ensure_ascii=False, indent=1) + "\n")
    else:
        raise TasksetInvalid(f"{path}: cannot write a taskset as {path.suffix!r}", "use .json or .jsonl")


def tasksets_in(path: Path) -> dict[str, Taskset]:
    """All tasksets of a tasks.py by name: Taskset attributes as they are, Task and list-of-Task attributes as
    train tasksets called after the attribute."""
    module = load_module(path)
    found: dict[str, Taskset] = {}
    loose: list[Task] = []
    for attribute, value in vars(module).items():
        if attribute.startswith("_"):
            continue
        if isinstance(value, Taskset):
            found[value.name] = value
        elif isinstance(value, Task):
            loose.append(value)
        elif isinstance(value, list | tuple) and value and all(isinstance(item, Task) for item in value):
            found.setdefault(attribute, Taskset(attribute, value))
    if loose and not found:
        found[path.stem] = Taskset(path.stem, loose)
    return found


def _from_python(path: Path, name: str | None) -> Taskset:
    found = tasksets_in(path)
    if not found:
        raise TasksetInvalid(
            f"{path} defines no tasks", "assign a Taskset, a Task or a list of Task at module level"
        )
    return named(found, name, path)


def _from_document(document: Any, path: Path, name: str | None) -> Taskset:
    if not isinstance(document, dict) or not isinstance(document.get("tasks"), list):
        raise TasksetInvalid(f"{path}: not a taskset", "use {'name': …, 'split': …, 'tasks': […]}")
    unknown = sorted(set(document) - _HEADER_FIELDS)
    if unknown:
        raise TasksetInvalid(
            f"{path}: unknown field {unknown[0]!r}", f"use {', '.join(sorted(_HEADER_FIELDS))}"
        )
    shared = document.get("environment")
    environment = environment_from_json(shared) if shared is not None else None
    tasks = [task_from_json(row, environment) for row in document["tasks"]]
    return Taskset(name or document.get("name", path.stem), tasks, document.get("split", "train"))


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TasksetInvalid(f"{where}: not JSON: {error}") from error
