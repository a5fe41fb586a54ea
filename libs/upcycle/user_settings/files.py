"""The two files of settings: a project's `upcycle.toml` and the user's profile. What they may not say is
refused with file, line and the nearest name.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from upcycle.errors import UpcycleError
from upcycle.toml_files import TomlFile, TomlInvalid, read_toml
from upcycle.user_settings.catalogue import (
    BY_KEY,
    KEYS,
    PROFILE,
    PROJECT,
    RUN_TABLES,
    SECRETS,
    SETTINGS,
    TABLES,
    UserSetting,
    ValueKind,
)

PROJECT_FILE: Final = "upcycle.toml"
PROFILE_FILE: Final = "upcycle/config.toml"
_OTHERS: Final = 0o077


def trusted_owners() -> tuple[int, ...]:
    """Users whose `upcycle.toml` is followed where it is found: this one, and root."""
    return os.getuid(), 0


class SettingsInvalid(UpcycleError, ValueError):
    """A setting has a name or a value that does not exist."""

    kind = "settings_invalid"


class SettingsRefused(UpcycleError, PermissionError):
    """A file of settings is open to others, or theirs: nothing of it is read."""

    kind = "settings_refused"


@dataclass(frozen=True, slots=True)
class FileValue:
    """place: `FILE:LINE`."""

    value: Any
    place: str


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a file says, by dotted key. run_fields: of its tables `eval` and `train`, by table. secrets: of
    MCP servers, by name; of a profile alone."""

    path: Path
    values: Mapping[str, FileValue]
    run_fields: Mapping[str, Mapping[str, FileValue]]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


def profile_path(environ: Mapping[str, str]) -> Path | None:
    """Where the user's profile is, or would be; None where there is none."""
    if PROFILE in environ:
        return Path(environ[PROFILE]) if environ[PROFILE] else None
    if folder := environ.get("XDG_CONFIG_HOME"):
        return Path(folder) / PROFILE_FILE
    home = environ.get("HOME")
    return Path(home) / ".config" / PROFILE_FILE if home else None


def project_path(environ: Mapping[str, str], start: Path) -> Path | None:
    """The nearest `upcycle.toml`, from a folder upwards."""
    if PROJECT in environ:
        return Path(environ[PROJECT]) if environ[PROJECT] else None
    return next((path for one in (start, *start.parents) if (path := one / PROJECT_FILE).is_file()), None)


def read_profile(environ: Mapping[str, str]) -> SettingsFile | None:
    """Raises SettingsRefused where others can read it, and SettingsInvalid."""
    path = profile_path(environ)
    if path is None or not path.exists():
        return None
    check_private(path)
    return _read(path, is_profile=True)


def check_private(path: Path) -> None:
    """Raises SettingsRefused for a file with keys that others can read or write."""
    mode = path.stat().st_mode & 0o777
    if mode & _OTHERS:
        raise SettingsRefused(
            f"{path} may hold keys, and others can open it (mode {mode:04o})", f"chmod 600 {path}"
        )


def read_project(environ: Mapping[str, str], start: Path) -> SettingsFile | None:
    """Raises SettingsRefused for a file of another user, and SettingsInvalid."""
    path = project_path(environ, start)
    if path is None:
        return None
    if not path.is_file():
        raise SettingsInvalid(f"{PROJECT} is {path}, and there is no such file", "name one, or unset it")
    owner = path.stat().st_uid
    if PROJECT not in environ and owner not in trusted_owners():  # it says where keys are sent
        raise SettingsRefused(
            f"{path} belongs to another user (uid {owner}), and commands here would follow it",
            f"{PROJECT}={path} takes it, {PROJECT}= leaves it",
        )
    return _read(path, is_profile=False)


def nearest(name: str, known: Mapping[str, Any] | tuple[str, ...]) -> str:
    """The name that was probably meant, or all of them. One that has each word of it comes first: somebody
    left out a section (UPCYCLE_TRAIN_STEPS for UPCYCLE_TRAIN_TRAINING_STEPS)."""
    words = set(name.split("_"))
    near = get_close_matches(name, [one for one in known if words <= set(one.split("_"))], n=1)
    near = near or get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _read(path: Path, *, is_profile: bool) -> SettingsFile:
    try:
        file = read_toml(path)
    except TomlInvalid as error:
        raise SettingsInvalid(str(error)) from error
    values = dict[str, FileValue]()
    run_fields = dict[str, Mapping[str, FileValue]]()
    secrets = dict[str, str]()
    for table, content in file.document.items():
        if table not in TABLES:
            raise SettingsInvalid(f"{file.place(table)}: unknown table {table!r}", nearest(table, TABLES))
        if not isinstance(content, dict):
            raise SettingsInvalid(f"{file.place(table)}: {table} is a table", f"write [{table}]")
        if table in RUN_TABLES:
            run_fields[table] = dict(_run_fields(file, table, content))
            continue
        if table == SECRETS:
            secrets = _secrets(file, content, is_profile=is_profile)
            continue
        for name, value in content.items():
            setting = _known(file, table, name, is_profile=is_profile)
            place = file.place(setting.key)
            values[setting.key] = FileValue(checked(setting, value, place, path.absolute().parent), place)
    return SettingsFile(path, values, run_fields, secrets)


def _secrets(file: TomlFile, content: Mapping[str, Any], *, is_profile: bool) -> dict[str, str]:
    if not is_profile:
        raise SettingsInvalid(
            f"{file.place(SECRETS)}: a project's file is shared, and holds no secrets",
            "upcycle set secret NAME --profile",
        )
    for name, value in content.items():
        if not isinstance(value, str):
            raise SettingsInvalid(f"{file.place(f'{SECRETS}.{name}')}: {name} is no text", 'write "…"')
    return dict(content)


def _known(file: TomlFile, table: str, name: str, *, is_profile: bool) -> UserSetting:
    key = f"{table}.{name}"
    place = file.place(key)
    setting = BY_KEY.get(key)
    if setting is None:
        names = tuple(one.key.partition(".")[2] for one in SETTINGS if one.key.startswith(f"{table}."))
        raise SettingsInvalid(f"{place}: unknown key {name!r} in [{table}]", nearest(name, names))
    if setting.only_profile and not is_profile:
        why = "is a key" if setting.is_secret else "says where a key of yours is sent"
        raise SettingsInvalid(
            f"{place}: {key} {why}, and a project's file is shared",
            f"upcycle set {setting.variable}" if table == KEYS else f"put it into the profile: [{table}]",
        )
    return setting


def checked(setting: UserSetting, value: Any, where: str, folder: Path) -> str:
    """A value as text, as its variable would hold it. folder: where a path begins. Raises SettingsInvalid."""
    if setting.kind is ValueKind.NUMBER:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number and not (isinstance(value, str) and value.strip().removeprefix("-").isdecimal()):
            raise SettingsInvalid(f"{where}: {setting.key} = {value!r} is no whole number")
        return str(value).strip()
    if not isinstance(value, str):
        raise SettingsInvalid(f"{where}: {setting.key} is no text", 'write it in quotes, as "…"')
    if setting.words and value not in setting.words:
        raise SettingsInvalid(f"{where}: {setting.key} = {value!r}", nearest(value, setting.words))
    return str(folder / value) if setting.kind is ValueKind.PATH else value


def _run_fields(file: TomlFile, table: str, content: Mapping[str, Any]) -> Iterator[tuple[str, FileValue]]:
    from upcycle.run_config.reading import RunFile, flat  # pydantic, which few commands need
    from upcycle.run_config.refusing import RunConfigInvalid, leaves
    from upcycle.tasks_files import TASKS_FILES

    known = leaves(RunFile)
    try:
        found = dict(flat(content, lambda path: file.place(f"{table}.{path}")))
    except RunConfigInvalid as error:
        raise SettingsInvalid(error.message, error.hint) from error
    for path, given in found.items():
        if path == "purpose" or (path not in known and not path.startswith("training.loss_config.")):
            hint = _run_hint(table, path, known)
            raise SettingsInvalid(f"{given.where}: unknown key {path!r} in [{table}]", hint)
        value = given.value
        if path.endswith("taskset") and isinstance(value, str) and value.endswith(TASKS_FILES):
            value = str(file.path.absolute().parent / value)
        yield path, FileValue(value, given.where)


def _run_hint(table: str, path: str, known: Mapping[str, Any]) -> str:
    """The field that was probably meant, by its path or its last part, of those that the command has."""
    if path == "purpose":
        return f"[{table}] says it"
    absent = ("purpose", "training.", "gate.") if table == "eval" else ("purpose",)
    fields = tuple(one for one in known if not one.startswith(absent))
    parts = {one.rpartition(".")[2]: one for one in fields}
    near = get_close_matches(path, fields, n=1) or get_close_matches(path.rpartition(".")[2], parts, n=1)
    return f"did you mean {parts.get(near[0], near[0])!r}?" if near else nearest(path, fields)
