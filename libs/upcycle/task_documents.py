"""Tasksets read from files: tasks.py, JSON, JSON lines, CSV. kind: the class Taskset, which imports this
module."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from upcycle.errors import TasksetInvalid, UnknownName
from upcycle.modules import load_module
from upcycle.task_rows import EnvironmentRef, Task, environment_from_json, task_from_json, tasks_listed
from upcycle.task_tables import document_from_table

if TYPE_CHECKING:
    from upcycle.tasks import Taskset

_HEADER_FIELDS: Final = frozenset({"name", "split", "environment", "tasks"})


def _named(tasksets: "Mapping[str, Taskset]", name: str | None, path: Path) -> "Taskset":
    """The one taskset asked for. Raises UnknownName when it is missing or the choice is not clear."""
    if name is None and len(tasksets) == 1:
        return next(iter(tasksets.values()))
    if name is not None and name in tasksets:
        return tasksets[name]
    known = ", ".join(sorted(tasksets)) or "none"
    raise UnknownName(
        f"{path} has no taskset {name!r}" if name else f"{path} has several tasksets", f"it has {known}"
    )


def load_taskset(kind: "type[Taskset]", path: Path, name: str | None) -> "Taskset":
    """The taskset of a file, as `Taskset.load` says it. Raises TasksetInvalid and UnknownName."""
    if path.suffix == ".py":
        return _from_python(kind, path, name)
    if not path.is_file():
        said = f"{path} is a folder" if path.is_dir() else f"no such file: {path}"
        raise UnknownName(said, "give a .py, .json, .jsonl or .csv file")
    if path.suffix == ".csv":
        document, places = document_from_table(_read(path), str(path))
        return _from_document(kind, document, path, name, places)
    if path.suffix == ".json":
        return _from_document(kind, _parse(_read(path), str(path)), path, name)
    if path.suffix == ".jsonl":
        lines = enumerate(_read(path).split("\n"), start=1)  # splitlines would also cut inside of strings
        texts = {f"{path}:{number}": line for number, line in lines if line.strip()}
        rows = [_parse(line, place) for place, line in texts.items()]
        first = int(bool(rows) and isinstance(rows[0], dict) and "scenario" not in rows[0])  # a header
        document = {**(rows[0] if first else {}), "tasks": rows[first:]}
        return _from_document(kind, document, path, name, list(texts)[first:])
    raise TasksetInvalid(
        f"{path}: cannot load a taskset from {path.suffix!r}", "use .py, .json, .jsonl or .csv"
    )


def _read(path: Path) -> str:
    """The text of a file; spreadsheets write a mark before it, which is left out. Raises TasksetInvalid."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TasksetInvalid(
            f"{path} is not UTF-8: {error}", "save it as CSV UTF-8, or convert it"
        ) from error


def tasksets_in(kind: "type[Taskset]", path: Path) -> "dict[str, Taskset]":
    """All tasksets of a tasks.py by name: Taskset attributes as they are, Task and list-of-Task attributes as
    train tasksets called after the attribute, where not all of its tasks are of a Taskset."""
    values = {name: value for name, value in vars(load_module(path)).items() if not name.startswith("_")}
    found = {value.name: value for value in values.values() if isinstance(value, kind)}
    of_tasksets = {task for taskset in found.values() for task in taskset}
    loose = [value for value in values.values() if isinstance(value, Task)]
    for attribute, value in values.items():
        if tasks_listed(value) - of_tasksets:
            found.setdefault(attribute, kind(attribute, value))
    if loose and not found:
        found[path.stem] = kind(path.stem, loose)
    return found


def _from_python(kind: "type[Taskset]", path: Path, name: str | None) -> "Taskset":
    found = tasksets_in(kind, path)
    if not found:
        raise TasksetInvalid(
            f"{path} defines no tasks", "assign a Taskset, a Task or a list of Task at module level"
        )
    return _named(found, name, path)


def _from_document(
    kind: "type[Taskset]", document: Any, path: Path, name: str | None, places: Sequence[str] = ()
) -> "Taskset":
    """places: of the tasks, in words; by default their numbers."""
    if not isinstance(document, dict) or not isinstance(document.get("tasks"), list):
        raise TasksetInvalid(f"{path}: not a taskset", "use {'name': …, 'split': …, 'tasks': […]}")
    unknown = sorted(set(document) - _HEADER_FIELDS)
    if unknown:
        raise TasksetInvalid(
            f"{path}: unknown field {unknown[0]!r}", f"use {', '.join(sorted(_HEADER_FIELDS))}"
        )
    shared = document.get("environment")
    environment = environment_from_json(shared, path.parent) if shared is not None else None
    rows = document["tasks"]
    places = places or [f"{path}: task {at}" for at in range(1, len(rows) + 1)]
    tasks = _placed(rows, places, environment, path.parent)
    return kind(name or document.get("name", path.stem), tasks, document.get("split", "train"))


def _placed(
    rows: Sequence[Any], places: Sequence[str], environment: EnvironmentRef | None, folder: Path
) -> list[Task]:
    """Raises TasksetInvalid that names the place of the row that is wrong, or repeats a slug."""
    tasks, known = list[Task](), dict[str, str]()
    for place, row in zip(places, rows, strict=True):
        try:
            task = task_from_json(row, environment, folder)
        except TasksetInvalid as error:
            error.message = f"{place}: {error.message}"
            raise
        if (first := known.setdefault(task.slug, place)) != place:
            raise TasksetInvalid(
                f"{place}: slug {task.slug!r} occurs twice, first at {first}", "make slugs unique"
            )
        tasks.append(task)
    return tasks


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TasksetInvalid(f"{where}: not JSON: {error}") from error
