"""Names that the fields of a run have on the command line, and as keywords of the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from pydantic_core import PydanticUndefined

from upcycle.run_config.model import RunSpec
from upcycle.run_config.names import Purpose
from upcycle.run_config.reading import RunFile, nested
from upcycle.run_config.refusing import RunConfigInvalid, checked, leaves, nearest

_SHORT: Final = {
    "group_size": "group",
    "source_runs": "from",
    "policy.pinned_version": "at-version",
    "training.prompts_per_step": "prompts",
    "training.checkpoint_every_steps": "checkpoint-every",
    "gate.taskset": "gate",
    "gate.attempts": "gate-attempts",
    "gate.confidence": "gate-confidence",
    "gate.regression_margin": "gate-regression-margin",
    "gate.min_gain": "gate-min-gain",
    "gate.critical": "gate-critical",
    "gate.require_review": "gate-require-review",
    "gate.by_shadow": "gate-by-shadow",
}
"""Flags whose name is not the last part of their field."""
_OF_PURPOSE: Final = {
    Purpose.TRAIN: {"sampling.seed": "sampling-seed"},
    Purpose.EVAL: {"taskset_name": "taskset"},
}
ALSO: Final[Mapping[Purpose, Mapping[str, str]]] = {
    Purpose.TRAIN: {"group_size": "group-size"},
    Purpose.EVAL: {
        "group_size": "group-size",
        "sampling.max_turns": "max-steps",
        "taskset_name": "taskset-name",
    },
}
"""A second name of a flag, by path: what other tools, and the other command, call it. A step of an evaluation
is a turn."""
_WITHOUT: Final = ("purpose", "policy.model", "training.loss_config", "against_version", "families", "draws")
"""Said by the command, by its argument MODEL, and by --set or a file alone."""
_ABSENT: Final = {
    Purpose.TRAIN: ("policy.", "trainable", "max_concurrent"),
    Purpose.EVAL: (
        "taskset",
        "training.",
        "gate.",
        "source_runs",
        "no_sampling",
        "sessions",
        "sessions_idle_s",
        "track",
        "stop_on",
        "mix",
    ),
}
"""Fields, and tables, that the other command has flags for."""
_LATER: Final = ("taskset", "taskset_name", "source_runs")
DEFAULTS_OF_EVAL: Final[Mapping[str, Any]] = {"group_size": 1, "policy.channel": "head"}
"""Defaults of `upcycle eval` that are not those of the model; with --trainable the channel is `latest`."""


@cache
def flags_of(purpose: Purpose) -> Mapping[str, str]:
    """Flag, without its dashes, by dotted path: of `upcycle train` or of `upcycle eval`."""
    absent = (*_WITHOUT, *_ABSENT[purpose])
    names = {**_SHORT, **_OF_PURPOSE[purpose]}
    return {
        path: names.get(path, path.rpartition(".")[2].replace("_", "-"))
        for path in leaves(RunFile)
        if path not in absent and f"{path.partition('.')[0]}." not in absent
    }


def default_text(path: str, purpose: Purpose) -> str:
    """The default of a field as people read it; empty where there is none, or nothing to say of it."""
    if purpose is Purpose.EVAL and path == "policy.channel":
        return "`head`; with --trainable `latest`"
    default = leaves(RunFile)[path].get_default(call_default_factory=True)
    if purpose is Purpose.EVAL:
        default = DEFAULTS_OF_EVAL.get(path, default)
    if default in (PydanticUndefined, None, "", ()) or default is False:
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def training_run(model: str, options: Mapping[str, Any]) -> RunSpec:
    """A training run from keywords, which are the flags of `upcycle train` with `_` for `-`; None leaves one
    out. Its taskset and its sources are named later. Raises RunConfigInvalid."""
    paths = {flag.replace("-", "_"): path for path, flag in flags_of(Purpose.TRAIN).items()}
    paths = {name: path for name, path in paths.items() if path not in _LATER}
    unknown = [name for name in options if name not in paths]
    if unknown:
        raise RunConfigInvalid([f"unknown option {name!r}; {nearest(name, paths)}" for name in unknown])
    given = {paths[name]: value for name, value in options.items() if value is not None}
    fixed = {"purpose": Purpose.TRAIN, "policy.model": model, "taskset": "?"}
    names = {path: name for name, path in paths.items()}
    return checked(RunSpec, nested({**given, **fixed}), lambda path: names.get(path, path))


def evaluation_run(
    model: str,
    taskset: str,
    *,
    group: int = 1,
    version: int | None = None,
    sampling: Mapping[str, Any] = MappingProxyType({}),
    trainable: bool = False,
    **fields: Any,
) -> RunSpec:
    """An evaluation, `group` episodes per task: of a version, else of head; of `latest` where its groups may
    train, since a training run takes none that are too old. fields: others of a run, such as `label`. Raises
    RunConfigInvalid."""
    channel = "latest" if trainable else "head"
    values = {
        "purpose": Purpose.EVAL,
        "taskset": taskset,
        "policy": {"model": model, "channel": channel, "pinned_version": version},
        "group_size": group,
        "sampling": {name: value for name, value in sampling.items() if value is not None},
        "trainable": trainable,
        **fields,
    }
    short = {"group_size": "group", "policy.pinned_version": "version"}
    return checked(RunSpec, values, lambda path: short.get(path, path))
