"""`upcycle config show`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json
from upcycle.cli.report_text import one_line, table

if TYPE_CHECKING:
    from upcycle.user_settings.layers import UserSettings

_SET, _NOT_SET = "set", "not set"
_RUNNING = "running platform"
_KEY_FILES = {"keys.UPCYCLE_API_KEY": "gateway_key_file", "keys.UPCYCLE_OPERATOR_KEY": "operator_key_file"}
_ARGUMENTS = ("policy.model", "taskset")
"""Fields of a run that have no flag of their own."""


@dataclass(frozen=True, slots=True)
class Row:
    """A setting as it is shown. value: None for a key, whose value is shown nowhere."""

    key: str
    variable: str
    value: Any
    is_set: bool
    layer: str
    place: str

    @property
    def text(self) -> str:
        """The value in words."""
        if self.value is None:
            return _SET if self.is_set else _NOT_SET
        return one_line(str(self.value), 60) if self.value != "" else "–"

    @property
    def source(self) -> str:
        """Where it comes from: the layer, and the variable or the line of the file."""
        return f"{self.layer}: {self.place}" if self.place else self.layer


def show(*, sources: bool = False, as_json: JsonFlag = False) -> int:
    """Every setting and its value: of the environment, else of the project's upcycle.toml, else of your
    profile, else the default. Flags of a command win over all of them.

    Keys are shown as set or not set, never as what they are.

    :param sources: where each value comes from, and which variable sets it.
    :param as_json: one JSON line per setting.
    """
    from upcycle.user_settings.layers import UserSettings

    settings = UserSettings.read()
    settings.check_names()
    rows = [*_settings(settings), *_run_fields(settings)]
    if as_json:
        for row in rows:
            names = {"key": row.key, "variable": row.variable, "value": row.value, "is_set": row.is_set}
            print_json("setting", {**names, "layer": row.layer, "place": row.place})
        return Exit.OK
    head = ["setting", "value", *(["from", "variable"] if sources else [])]
    lines = [[row.key, row.text, *([row.source, row.variable] if sources else [])] for row in rows]
    for line in table([head, *lines]):
        print(line)
    return Exit.OK


def _settings(settings: "UserSettings") -> Iterator[Row]:
    from upcycle.user_settings.catalogue import SETTINGS
    from upcycle.user_settings.layers import Layer

    peers, running = settings.peers(*Layer), _running(settings)
    for one in SETTINGS:
        found = settings.find(one.key)
        if found.layer is Layer.DEFAULT:  # an address may follow from the host
            found = peers.get(one.key.removeprefix("platform."), found)
        if found.layer in (Layer.PROFILE, Layer.DEFAULT) and one.key in running:
            yield Row(one.key, one.variable, *running[one.key])
            continue
        value = None if one.hides(found.value) else found.value
        is_set = found.layer is not Layer.DEFAULT and bool(found.value)
        yield Row(one.key, one.variable, value, is_set, found.layer.value, found.place)


def _running(settings: "UserSettings") -> dict[str, tuple[str | None, bool, str, str]]:
    """What commands here take from the platform that `upcycle up` started: value, whether there is one, layer
    and place, by setting."""
    from upcycle.errors import UpcycleError
    from upcycle.platform import running_stack

    try:
        found = running_stack(settings=settings)
    except UpcycleError:  # who connects is told
        return {}
    if found is None:
        return {}
    path, state = found
    rows: dict[str, tuple[str | None, bool, str, str]] = {
        f"platform.{peer}": (address, True, _RUNNING, str(path)) for peer, address in state["peers"].items()
    }
    for key, name in _KEY_FILES.items():
        if state.get(name):
            rows[key] = (None, True, _RUNNING, str(path.parent / state[name]))
    return rows


def _run_fields(settings: "UserSettings") -> Iterator[Row]:
    """Of evaluations and training runs: what their flags, --set and --config may change."""
    from upcycle.run_config.flags import default_text, flags_of
    from upcycle.run_config.names import Purpose
    from upcycle.user_settings.catalogue import RUN_TABLES
    from upcycle.user_settings.layers import Layer, run_variable

    for name in RUN_TABLES:
        given = settings.run_layers(name)
        for path in dict.fromkeys([*_ARGUMENTS, *flags_of(Purpose(name)), *given]):
            variable = "" if ".loss_config" in path else run_variable(name, path)  # --set or a file
            if path in given:
                value, layer, place = given[path]
                shown = value if isinstance(value, str | int | float | bool) else list(value)
                yield Row(f"{name}.{path}", variable, shown, True, layer.value, place)
            else:
                default = default_text(path, Purpose(name))
                yield Row(f"{name}.{path}", variable, default, False, Layer.DEFAULT.value, "")
