"""Reads a run configuration from flags, --set KEY=VALUE and a TOML file, in this order of precedence. The
origin of each value is kept, so that an error names the flag, or the file and its line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from pydantic.dataclasses import dataclass

from upcycle.run_config.gate import CONFIG
from upcycle.run_config.limits import shown
from upcycle.run_config.model import RunSpec
from upcycle.run_config.names import Purpose, Say
from upcycle.run_config.refusing import RunConfigInvalid, checked, leaves
from upcycle.tasks_files import TASKS_FILES
from upcycle.toml_files import TomlInvalid, read_toml


@dataclass(frozen=True, slots=True, config=CONFIG)
class RunFile(RunSpec):
    """A run as a file or a command line describes it."""

    taskset_name: str = ""
    """which taskset of a tasks file; it may be left out where the file defines one."""

    @property
    def run(self) -> RunSpec:
        """What is submitted, once the tasks file is registered under a name."""
        return RunSpec(**{name: getattr(self, name) for name in RunSpec.__dataclass_fields__})


@plain_dataclass(frozen=True, slots=True)
class Given:
    """A value, and what a person calls the place that it came from."""

    value: Any
    where: str


_TASKS: Final = ("taskset", "taskset_name", "mix")
"""Fields that say what a run plays."""


@plain_dataclass(frozen=True, slots=True)
class Sources:
    """Values by dotted path. names: of flags and arguments, for the paths that nothing was given for. below:
    what the user's settings say, for the paths that this run was not asked for."""

    values: Mapping[str, Given]
    names: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None
    below: Mapping[str, Given] = field(default_factory=dict)

    def say(self, path: str) -> str:
        """What the reader calls a field: where it came from, else the flag that would set it."""
        path = re.sub(r"\.[0-9]+$", "", path)  # a part of a list is called what the list is
        if (found := self._given(path)) is not None:
            return found.where
        known = {**self.below, **self.values}
        below = [given.where for key, given in known.items() if key.startswith(f"{path}.")]
        if below:
            _, bracket, place = below[0].partition(" (")
            return f"{path}{bracket}{place}"
        return self.names.get(path, path)

    def value(self, path: str, default: Any = None) -> Any:
        """What was given for a path, else what the user's settings say."""
        found = self._given(path)
        return found.value if found is not None else default

    def has(self, path: str) -> bool:
        """Whether it was given, or is among the user's settings."""
        return self._given(path) is not None

    def without(self, *paths: str) -> Sources:
        """Without what was said of some paths."""
        values, below = (
            {path: one for path, one in known.items() if path not in paths}
            for known in (self.values, self.below)
        )
        return Sources(values, self.names, self.file, below)

    def _given(self, path: str) -> Given | None:
        return self.values.get(path) or self.below.get(path)

    def run(self, purpose: Purpose, defaults: Mapping[str, Any]) -> RunFile:
        """The run that all of it describes. defaults: by path, where nothing was given. A tasks file that a
        file names lies beside it. Raises RunConfigInvalid."""
        given = {path: one.value for path, one in {**self.below, **self.values}.items()}
        if given.get("purpose", purpose) != purpose:
            raise RunConfigInvalid(
                [f"{self.say('purpose')} is {shown(given['purpose'])}, and this is for {purpose}"]
            )
        run = checked(RunFile, nested({**defaults, **given, "purpose": purpose}), self.say)
        where = self.values["taskset"].where if "taskset" in self.values else ""
        if self.file is None or "(" not in where or not run.taskset.endswith(TASKS_FILES):
            return run
        tasks = self.file.absolute().parent / run.taskset
        if not tasks.is_file():
            raise RunConfigInvalid(
                [f"{where}: no such file: {tasks}"], "paths begin at the folder of the file"
            )
        object.__setattr__(run, "taskset", str(tasks))
        return run


def without_tasks_of_settings(given: Sources) -> Sources:
    """What was given, of a run that was asked to train on recorded sessions: the user's settings add no tasks
    to it, as they add none to a run that begins with evaluations."""
    if "sessions" not in given.values or any(path in given.values for path in _TASKS):
        return given
    return given.without(*_TASKS)


def of_sessions_alone(given: Sources) -> dict[str, Any]:
    """Defaults of a training run that names recorded sessions and no taskset: it plays nothing. Empty of any
    other run."""
    alone = given.value("sessions") and not given.value("taskset")
    return {"taskset": "", "no_sampling": True} if alone else {}


def gather(
    flags: Mapping[str, Any],
    sets: Sequence[str] = (),
    config: Path | None = None,
    *,
    names: Mapping[str, str],
) -> Sources:
    """Flags before --set before the file. flags: values by path; names: of flags, by path. Raises
    RunConfigInvalid where a flag and a --set of one field, or two --set, say different things."""
    from_flags = {path: Given(value, names[path]) for path, value in flags.items()}
    merged = from_file(config) if config is not None else {}
    said: dict[str, Given] = {}
    reasons = []
    for path, given in [*_from_sets(sets), *from_flags.items()]:
        first, said[path] = said.get(path, given), given
        if first is not given and first.value != given.value:
            texts = [f"{one.where} is {shown(one.value)}" for one in (first, given)]
            reasons.append(f"{', and '.join(texts)}: give one")
    if reasons:
        raise RunConfigInvalid(reasons)
    return Sources({**merged, **said}, names, config)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tables from dotted paths. Raises RunConfigInvalid where one path is a value and a table."""
    tables: dict[str, Any] = {}
    for path, value in values.items():
        *above, last = path.split(".")
        table = tables
        for name in above:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise RunConfigInvalid([f"{path}: {name} is a table, and it was also given as a value"])
        if isinstance(table.get(last), dict):
            raise RunConfigInvalid(
                [f"{path} is a table: give one of its keys, such as {path}.{next(iter(table[last]))}"]
            )
        table[last] = value
    return tables


def _from_sets(sets: Sequence[str]) -> Iterator[tuple[str, Given]]:
    for one in sets:
        path, equals, text = one.partition("=")
        path = path.strip()
        if not equals or not path:
            raise RunConfigInvalid([f"--set {one!r} is not KEY=VALUE"], "such as --set training.steps=3")
        yield from flat(nested({path: typed(path, text.strip())}), "--set {}".format)


def typed(path: str, text: str) -> Any:
    """A value as TOML would read it; else text, and for a list its parts."""
    kind = getattr(leaves(RunFile).get(path), "annotation", None)
    try:
        document = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return tuple(filter(None, text.split(","))) if kind == tuple[str, ...] else text
    value = document.pop("value")
    if document:
        raise RunConfigInvalid([f"--set {path} sets {', '.join(document)} too: give each its own --set"])
    return text if kind is str and not isinstance(value, str) else value


def from_file(path: Path) -> dict[str, Given]:
    """The values of a TOML file by dotted path. Raises RunConfigInvalid, naming file and line."""
    try:
        found = read_toml(path)
    except FileNotFoundError:
        raise RunConfigInvalid([f"{path}: no such file"], "give the TOML file of a run") from None
    except TomlInvalid as error:
        raise RunConfigInvalid([str(error)]) from error
    return dict(flat(found.document, lambda key: f"{key} ({found.place(key)})"))


def flat(table: Mapping[str, Any], say: Say, prefix: str = "") -> Iterator[tuple[str, Given]]:
    """Values by path. A table that is no part of a run stays whole: its name is what is wrong. Raises
    RunConfigInvalid for a key with a dot inside, which would be a second way to write a path."""
    known = leaves(RunFile)
    for name, value in table.items():
        path = f"{prefix}{name}"
        if "." in name:
            raise RunConfigInvalid([f"{say(path)}: {name!r} is one key with dots: leave its quotes out"])
        is_part = any(key.startswith(f"{path}.") for key in known) or path == "training.loss_config"
        if isinstance(value, dict) and value and is_part:
            yield from flat(value, say, f"{path}.")
        else:
            yield path, Given(value, say(path))
