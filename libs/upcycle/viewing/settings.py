"""Settings of a run whose values are not the defaults."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from upcycle.run_config.flags import DEFAULTS_OF_EVAL
from upcycle.run_config.names import Purpose
from upcycle.run_config.refusing import RunConfigInvalid, leaves
from upcycle.run_pages.values import ShownSetting

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import RunSpec as WireSpec

_IN_THE_FACTS: Final = ("taskset", "purpose", "policy.model", "label")


def differing_settings(message: "WireSpec") -> tuple[ShownSetting, ...]:
    """By their dotted names. None of a spec that another version of the planner made and this one refuses."""
    from upcycle.run_config.wire import spec_from_wire

    try:
        spec = spec_from_wire(message)
    except RunConfigInvalid:
        return ()
    return tuple(_differing(spec, spec.purpose))


def _differing(spec: Any, purpose: Purpose) -> Iterator[ShownSetting]:
    for path, info in leaves().items():
        section, _, name = path.rpartition(".")
        part = getattr(spec, section) if section else spec
        if part is None or path in _IN_THE_FACTS:
            continue
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        if purpose is Purpose.EVAL:
            default = DEFAULTS_OF_EVAL.get(path, default)
        default = getattr(part, "defaults_by_mode", {}).get(name, default)
        value = getattr(part, name)
        if value != default and value is not None:
            yield ShownSetting(path, _text(value), _text(default))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "–" if value is None or value == "" else str(getattr(value, "value", value))
