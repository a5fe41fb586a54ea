"""Changes one line of the user's profile. The file is written whole, open to its user alone, and only where
it then says what it said before and the one change: comments and order stay.
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from upcycle.toml_files import TomlInvalid, lines_of, read_toml
from upcycle.user_settings.catalogue import PROFILE, UserSetting, ValueKind
from upcycle.user_settings.files import SettingsInvalid, check_private, profile_path
from upcycle.whole_files import written_whole

MAX_VALUE_CHARS: Final = 4096
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_LEFT: Final = re.compile(r"^[^=]*=")


def store(setting: UserSetting, value: str, environ: Mapping[str, str]) -> Path:
    """Write a value into the profile; the file's path. Raises SettingsInvalid and SettingsRefused."""
    path = _place(environ)
    document, text = _read(path)
    table, _, name = setting.key.partition(".")
    typed = int(value) if setting.kind is ValueKind.NUMBER else value
    _write(
        path,
        _with_line(text, setting.key, typed),
        {**document, table: {**document.get(table, {}), name: typed}},
    )
    return path


def remove(setting: UserSetting, environ: Mapping[str, str]) -> Path:
    """Take a value out of the profile; the file's path. Raises SettingsInvalid, also for one that is not
    there, and SettingsRefused."""
    path = _place(environ)
    document, text = _read(path)
    table, _, name = setting.key.partition(".")
    if name not in document.get(table, {}):
        raise SettingsInvalid(f"{setting.key} is not in {path}", "`upcycle set --list` shows what is")
    kept = {key: value for key, value in document[table].items() if key != name}
    lines = text.splitlines(keepends=True)
    number = lines_of(text).get(setting.key, 0)
    _write(path, "".join(lines[: number - 1] + lines[number:]) if number else text, {**document, table: kept})
    return path


def one_value(setting: UserSetting, text: str) -> str:
    """What a person or a file gave: one line, without what a header of a request cannot hold. The refusal
    does not repeat it. Raises SettingsInvalid."""
    value = text.strip()
    name = setting.variable
    if not value:
        raise SettingsInvalid(f"{name}: nothing was given", "give its value, in one line")
    if len(value) > MAX_VALUE_CHARS:
        raise SettingsInvalid(f"{name}: {len(value):,} characters were given", f"at most {MAX_VALUE_CHARS:,}")
    if not value.isprintable():
        raise SettingsInvalid(f"{name}: lines or control characters were given", "give one line")
    if setting.is_secret and (not value.isascii() or " " in value):
        raise SettingsInvalid(f"{name}: a key has no spaces and no letters beyond ASCII", "copy it again")
    return value


def _place(environ: Mapping[str, str]) -> Path:
    path = profile_path(environ)
    if path is None:
        raise SettingsInvalid("there is no profile to write to", f"set HOME, or {PROFILE}=FILE")
    path = path.resolve()  # a link to the file stays a link
    try:
        path.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        if PROFILE not in environ:
            path.parent.chmod(_FOLDER_MODE)
    except OSError as error:
        raise SettingsInvalid(
            f"{path.parent}: {error.strerror or error}", f"name another: {PROFILE}=FILE"
        ) from error
    return path


def _read(path: Path) -> tuple[dict[str, Any], str]:
    if not path.exists():
        return {}, ""
    check_private(path)
    try:
        return dict(read_toml(path).document), path.read_text(encoding="utf-8")
    except TomlInvalid as error:
        raise SettingsInvalid(str(error)) from error


def _with_line(text: str, key: str, value: str | int) -> str:
    """The text with one key set: on its line, else below its table's header, else at the end."""
    table, _, name = key.partition(".")
    shown = json.dumps(value, ensure_ascii=False)
    lines = text.splitlines()
    known = lines_of(text)
    if (number := known.get(key)) is not None:
        left = _LEFT.match(lines[number - 1])
        lines[number - 1] = f"{left[0] if left else ''} {shown}"
    elif (header := known.get(table)) is not None and lines[header - 1].lstrip().startswith("["):
        lines.insert(header, f"{name} = {shown}")
    else:
        lines += [*([""] if lines else []), f"[{table}]", f"{name} = {shown}"]
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str, wanted: Mapping[str, Any]) -> None:
    try:
        is_right = tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise SettingsInvalid(f"{path} is written in a way that is not changed here", "edit it yourself")
    try:
        with written_whole(path) as draft:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise SettingsInvalid(f"{path} cannot be written: {error.strerror or error}") from error
