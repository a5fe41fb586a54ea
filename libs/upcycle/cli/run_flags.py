"""Flags of `upcycle train` and `upcycle eval`, made from the model of a run: names, types, help, defaults."""

from dataclasses import dataclass, replace
from enum import Enum
from keyword import iskeyword
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin

from cyclopts import Parameter

from upcycle.run_config.flags import ALSO, DEFAULTS_OF_EVAL, default_text, flags_of
from upcycle.run_config.names import Purpose
from upcycle.run_config.reading import RunFile, Sources, gather
from upcycle.run_config.refusing import leaves
from upcycle.user_settings.layers import UserSettings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_GROUPS: Final = {"sampling": "Sampling", "training": "Training", "gate": "Gate"}


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFlags:
    """--config and --set, by which every other field of a run is given."""

    config: Path | None = None
    """TOML file of the run; flags and --set override the file."""
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = ()
    """one field of the run as KEY=VALUE, such as training.loss_config.clip_high=0.28; may be repeated."""


NO_CONFIG: Final = ConfigFlags()


def flag_class(purpose: Purpose, name: str) -> Any:
    """A class with a field for each flag, None where it was not given, as cyclopts takes it."""
    known, annotations = leaves(RunFile), dict[str, Any]()
    for path, flag in flags_of(purpose).items():
        annotations[attribute(flag)] = Annotated[
            _kind(known[path]) | None,
            Parameter(
                name=[f"--{one}" for one in (flag, ALSO[purpose].get(path)) if one],
                negative="",
                help=_help(path, known[path], purpose),
                consume_multiple=True,
                group=_GROUPS.get(path.partition(".")[0], "Parameters"),
            ),
        ]
    members = {"__annotations__": annotations, "__module__": __name__, **dict.fromkeys(annotations)}
    made = type(name, (), {**members, "__doc__": "What to run, and how."})
    return Parameter(name="*")(dataclass(frozen=True, kw_only=True)(made))


def attribute(flag: str) -> str:
    """Name of a flag in Python."""
    name = flag.replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def sources_of(
    purpose: Purpose, flags: Any, config: ConfigFlags, *, arguments: dict[str, tuple[str, str | None]]
) -> Sources:
    """Everything that was given, above the user's settings. arguments: path, to name and value of a
    positional one. Raises RunConfigInvalid and SettingsInvalid."""
    names = {path: f"--{flag}" for path, flag in flags_of(purpose).items()}
    names |= {path: name for path, (name, _) in arguments.items()}
    given = {path: getattr(flags, attribute(flag)) for path, flag in flags_of(purpose).items()}
    given |= {path: value for path, (_, value) in arguments.items()}
    chosen = {path: _once(value) for path, value in given.items() if value is not None}
    below = UserSettings.read().run_fields(purpose.value)
    return replace(gather(chosen, config.set_, config.config, names=names), below=below)


def eval_defaults(sources: Sources) -> dict[str, Any]:
    """With --trainable the newest weights play: a training run takes no groups older than its
    --max-staleness.
    """
    return {**DEFAULTS_OF_EVAL, **({"policy.channel": "latest"} if sources.value("trainable") else {})}


def _once(value: Any) -> Any:
    """A list with each of its parts once."""
    return tuple(dict.fromkeys(value)) if isinstance(value, tuple) else value


def _kind(info: "FieldInfo") -> Any:
    annotation = info.annotation
    if isinstance(annotation, UnionType) or get_origin(annotation) not in (None, tuple):
        annotation = next(one for one in get_args(annotation) if one is not type(None))
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return str if isinstance(annotation, type) and issubclass(annotation, Enum) else annotation


def _help(path: str, info: "FieldInfo", purpose: Purpose) -> str:
    said = " ".join((info.description or "").split()).removesuffix(".")
    default = default_text(path, purpose)
    return f"{said}. Default {default}." if default else f"{said}."
