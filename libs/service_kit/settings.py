"""Settings are read once, from the environment and an optional file, and refuse what they do not know.

pydantic's `extra="forbid"` cannot see a misspelt environment variable; `load_settings` compares each variable
that carries one of our prefixes with the fields, and reports everything that is wrong at once.
"""

import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from dotenv import dotenv_values
from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as UnparsableSetting

from service_kit.groups import (
    AccessSettings,
    BusSettings,
    EdgeSettings,
    PeerSettings,
    S3Settings,
    SigningSettings,
    SqlSettings,
    TlsSettings,
)
from service_kit.redact import Redactor

EXIT_SETTINGS: Final = 2
"""Exit status of a process whose settings are wrong."""
SHARED_GROUPS: tuple[type[BaseSettings], ...] = (
    BusSettings,
    S3Settings,
    SigningSettings,
    PeerSettings,
    SqlSettings,
    AccessSettings,
    TlsSettings,
    EdgeSettings,
)
"""Groups whose prefixes are checked in every service, whether it uses the group or not."""

S = TypeVar("S", bound=BaseSettings)
redact = Redactor()


class SettingsError(Exception):
    """Everything that is wrong with the settings of one program; `problems` has one line each."""

    def __init__(self, program: str, problems: list[str]) -> None:
        super().__init__(program, problems)
        self.program = program
        self.problems = problems

    def __str__(self) -> str:
        listed = "\n".join(f"  - {problem}" for problem in self.problems)
        return f"{self.program}: {len(self.problems)} problem(s) in the settings\n{listed}"


class ServiceSettings(BaseSettings):
    """Base of each service's settings: where it listens and how it talks about itself."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )

    host: str = "127.0.0.1"
    """Address to listen on."""
    http_port: int = Field(0, ge=0, le=65535)
    """Port of /livez, /readyz and /metrics; 0 lets the system choose."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe record that is written."""
    drain_s: float = Field(20.0, gt=0)
    """Seconds that each component gets to finish what is in flight at shutdown."""
    tls: TlsSettings = Field(default_factory=TlsSettings)
    edge: EdgeSettings = Field(default_factory=EdgeSettings)


def load_settings(cls: type[S], *, environ: Mapping[str, str] | None = None, program: str | None = None) -> S:
    """Read `cls` from `environ` (default os.environ) and the dotenv file that `<PREFIX>SETTINGS_FILE` names.

    The environment wins over the file. Raises SettingsError, which lists everything that is wrong at once.
    """
    source = dict(os.environ if environ is None else environ)
    problems: list[str] = []
    merged = {**_file_values(cls, source, problems), **source}
    problems += _unknown_variables(cls, merged)
    with _environment(merged):
        settings = _construct(cls, merged, problems)
    if settings is None or problems:
        raise SettingsError(program or cls.__name__, problems)
    return settings


def variables(cls: type[BaseSettings]) -> dict[str, FieldInfo]:
    """Environment variable name -> field, for the class and the settings groups in it."""
    found: dict[str, FieldInfo] = {}
    for name, field in cls.model_fields.items():
        group = group_of(field)
        if group is None:
            found[f"{_prefix(cls)}{name.upper()}"] = field
        else:
            found |= variables(group)
    return found


def group_of(field: FieldInfo) -> type[BaseSettings] | None:
    """The settings class of a field that is a group, else None."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseSettings) else None


def is_secret(field: FieldInfo) -> bool:
    """Whether the field's value must never be shown."""
    return any(kind is SecretStr for kind in _kinds(field.annotation))


def _kinds(annotation: object) -> tuple[object, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _prefix(cls: type[BaseSettings]) -> str:
    return str(cls.model_config.get("env_prefix", ""))


def _groups(cls: type[BaseSettings]) -> dict[str, type[BaseSettings]]:
    """Field name -> settings group, for the direct groups of a class."""
    found = {name: group_of(field) for name, field in cls.model_fields.items()}
    return {name: group for name, group in found.items() if group is not None}


def _checked_classes(cls: type[BaseSettings]) -> tuple[type[BaseSettings], ...]:
    return (cls, *_groups(cls).values(), *SHARED_GROUPS)


def _file_variable(cls: type[BaseSettings]) -> str:
    return f"{_prefix(cls)}SETTINGS_FILE"


def _file_values(cls: type[BaseSettings], source: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    name = _file_variable(cls)
    if not source.get(name):
        return {}
    path = Path(source[name])
    if not path.is_file():
        problems.append(f"{name}={str(path)!r}: no such file")
        return {}
    values = {key: value or "" for key, value in dotenv_values(path, interpolate=False).items()}
    prefixes = tuple(_prefix(known) for known in _checked_classes(cls))
    problems += [_unknown(key, cls) + f" (in {path})" for key in values if not key.startswith(prefixes)]
    return values


def _unknown_variables(cls: type[BaseSettings], environ: Mapping[str, str]) -> list[str]:
    prefixes = tuple(_prefix(known) for known in _checked_classes(cls) if _prefix(known))
    valid = _valid_names(cls)
    return [
        _unknown(name, cls)
        for name in sorted(environ)
        if name.startswith(prefixes) and name not in valid and not _nested(name, cls)
    ]


def _valid_names(cls: type[BaseSettings]) -> set[str]:
    names = {_file_variable(cls)}
    return names.union(*(variables(known) for known in _checked_classes(cls)))


def _nested(name: str, cls: type[BaseSettings]) -> bool:
    """Whether the variable sets a part of a field that is a plain pydantic model."""
    delimiter = cls.model_config.get("env_nested_delimiter")
    return bool(delimiter) and any(
        name.startswith(f"{variable}{delimiter}")
        for variable, field in variables(cls).items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    )


def _unknown(name: str, cls: type[BaseSettings]) -> str:
    nearest = difflib.get_close_matches(name, sorted(_valid_names(cls)), n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{name}: unknown variable{hint}"


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Let pydantic-settings read `values` for a moment; runs at start-up, before there are other threads."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _construct(cls: type[S], environ: Mapping[str, str], problems: list[str]) -> S | None:
    """Build groups first, so that one bad group does not hide what is wrong with the others."""
    groups: dict[str, Any] = {}
    broken: list[str] = []
    for name, group in _groups(cls).items():
        built = _validated(group, environ, problems, {})
        broken += [name] if built is None else []
        groups[name] = group.model_construct() if built is None else built
    return _validated(cls, environ, problems, groups, broken)


def _validated(
    cls: type[S],
    environ: Mapping[str, str],
    problems: list[str],
    groups: Mapping[str, Any],
    broken: Collection[str] = (),
) -> S | None:
    """broken: groups whose problems are listed already; pydantic finds their rules broken once more."""
    try:
        return cls(**groups)
    except ValidationError as error:
        known = {(name,) for name in broken}
        new = (one for one in error.errors(include_url=False) if one["loc"][:1] not in known)
        problems += [_describe(cls, detail, environ) for detail in new]
    except UnparsableSetting as error:
        problems.append(f"{_prefix(cls)}*: {error}: {error.__cause__}")
    return None


def _describe(cls: type[BaseSettings], detail: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    location = detail["loc"]
    if not location:  # a rule across fields: its message names the variables
        return str(detail["msg"]).removeprefix("Value error, ")
    name = f"{_prefix(cls)}{str(location[0]).upper()}"
    field = cls.model_fields.get(str(location[0]))
    value = "***" if field and is_secret(field) else repr(environ.get(name, ""))
    shown = f"={value}" if name in environ else ""
    return redact(f"{name}{shown}: {str(detail['msg']).removeprefix('Value error, ')}")
