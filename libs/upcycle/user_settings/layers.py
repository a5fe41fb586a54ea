"""What a setting is, and where that comes from."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from upcycle.user_settings.catalogue import (
    BY_KEY,
    BY_VARIABLE,
    DEFAULT_PORTS,
    HOST,
    OWN_PREFIXES,
    RUN_TABLES,
    SETTINGS,
    UserSetting,
)
from upcycle.user_settings.files import (
    FileValue,
    SettingsFile,
    SettingsInvalid,
    checked,
    nearest,
    read_profile,
    read_project,
)

if TYPE_CHECKING:
    from upcycle.run_config.reading import Given


class Layer(StrEnum):
    """Where a value comes from: an earlier one wins. Flags are before all of them."""

    ENVIRONMENT = "environment"
    PROJECT = "project"
    PROFILE = "profile"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Found:
    """A value and its place: a variable, `FILE:LINE`, or "" for a default."""

    value: str
    layer: Layer
    place: str = ""


@dataclass(frozen=True, slots=True)
class UserSettings:
    """The layers below the flags, as they were read."""

    environ: Mapping[str, str]
    project: SettingsFile | None
    profile: SettingsFile | None

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None, start: Path | None = None) -> Self:
        """environ: the variables, by default of this process. start: the folder from which the project's file
        is looked for. Raises SettingsInvalid and SettingsRefused."""
        env = dict(os.environ if environ is None else environ)
        project = read_project(env, (start or Path.cwd()).absolute())
        return cls(env, project, read_profile(env))

    def find(self, key: str) -> Found:
        """A setting by its key, such as `platform.host`. Raises SettingsInvalid for a variable that holds no
        value of its kind."""
        setting = BY_KEY[key]
        for layer in Layer:
            if (found := self._in(layer, setting)) is not None:
                return found
        return Found(setting.default, Layer.DEFAULT)

    def _in(self, layer: Layer, setting: UserSetting) -> Found | None:
        if layer is Layer.ENVIRONMENT:
            if (text := self.environ.get(setting.variable)) is None:
                return None
            if setting.is_secret or not text:
                return Found(text, layer, setting.variable)
            return Found(checked(setting, text, setting.variable, Path.cwd()), layer, setting.variable)
        for file, its_layer in self._files():
            if its_layer is layer and setting.key in file.values:
                value = file.values[setting.key]
                return Found(value.value, layer, value.place)
        return None

    def variables(self) -> dict[str, str]:
        """All that is set, as environment variables: what reads one reads the files too."""
        found = {one.variable: self.find(one.key) for one in SETTINGS}
        set_ = {name: one.value for name, one in found.items() if one.layer is not Layer.DEFAULT}
        return {**self.environ, **set_}

    def peers(self, *layers: Layer) -> dict[str, Found]:
        """The platform's public addresses that some layers give: one that is named, else the host's."""
        found = dict[str, Found]()
        for layer in sorted(layers, key=list(Layer).index, reverse=True):
            if (host := self._in(layer, BY_KEY[HOST])) is not None and host.value:
                at = {peer: f"{host.value}:{port}" for peer, port in DEFAULT_PORTS.items()}
                found |= {peer: Found(address, layer, host.place) for peer, address in at.items()}
            named = {peer: self._in(layer, BY_KEY[f"platform.{peer}"]) for peer in DEFAULT_PORTS}
            found |= {peer: one for peer, one in named.items() if one is not None}
        return found

    def run_fields(self, table: str) -> dict[str, "Given"]:
        """What the tables `eval` or `train`, and their variables, say of a run, by dotted path. Raises
        SettingsInvalid for a variable that is none of its fields."""
        from upcycle.run_config.reading import Given

        return {path: Given(one.value, _where(path, one)) for path, one in self._run_values(table).items()}

    def run_layers(self, table: str) -> dict[str, tuple[Any, Layer, str]]:
        """The same with layer and place."""
        layers = {
            one.place: layer
            for file, layer in self._files()
            for one in file.run_fields.get(table, {}).values()
        }
        return {
            path: (one.value, layers.get(one.place, Layer.ENVIRONMENT), one.place)
            for path, one in self._run_values(table).items()
        }

    def check_names(self) -> None:
        """Raises SettingsInvalid for a variable of ours that is no setting."""
        for table in RUN_TABLES:
            self._run_values(table)
        for name in self.environ:
            if name.startswith(OWN_PREFIXES[0]) and name not in BY_VARIABLE:
                raise SettingsInvalid(f"the environment has {name}", nearest(name, tuple(BY_VARIABLE)))

    def _run_values(self, table: str) -> dict[str, FileValue]:
        found = dict[str, FileValue]()
        for file, _ in reversed(list(self._files())):
            found |= file.run_fields.get(table, {})
        prefix = f"UPCYCLE_{table.upper()}_"
        if named := {name: text for name, text in self.environ.items() if name.startswith(prefix)}:
            found |= _from_variables(prefix, named)
        return found

    def _files(self) -> Iterator[tuple[SettingsFile, Layer]]:
        """The files that are there, the stronger one first."""
        if self.project is not None:
            yield self.project, Layer.PROJECT
        if self.profile is not None:
            yield self.profile, Layer.PROFILE


def variables() -> dict[str, str]:
    """The environment variables of this process, and what the user's files say where one is not set."""
    return UserSettings.read().variables()


def run_variable(table: str, path: str) -> str:
    """The variable of a field of a run: UPCYCLE_TRAIN_TRAINING_STEPS."""
    return f"UPCYCLE_{table.upper()}_{path.replace('.', '_').upper()}"


def _from_variables(prefix: str, named: Mapping[str, str]) -> dict[str, FileValue]:
    from upcycle.run_config.reading import RunFile, typed
    from upcycle.run_config.refusing import leaves

    table = prefix.split("_")[1]
    paths = {run_variable(table, path): path for path in leaves(RunFile) if path != "purpose"}
    for name in named:
        if name not in paths:
            raise SettingsInvalid(f"the environment has {name}", nearest(name, tuple(paths)))
    return {paths[name]: FileValue(typed(paths[name], text), name) for name, text in named.items()}


def _where(path: str, found: FileValue) -> str:
    """As a run's reader calls it: `group_size (upcycle.toml:3)`."""
    return f"{path} ({found.place})"
