"""The reference page of the run configuration, from the model. `docs/generate.py` writes it, and adds the
options of the losses."""

from typing import Any, Final, get_args

from upcycle.run_config.flags import default_text, flags_of
from upcycle.run_config.limits import Limit, OneOf
from upcycle.run_config.names import CHANNELS, Purpose
from upcycle.run_config.reading import RunFile
from upcycle.run_config.refusing import leaves

_INTRODUCTION: Final = """# Run configuration

What a run has, as keys of a TOML file: `upcycle train --config run.toml`, `upcycle eval --config run.toml`,
`upcycle up --standing run.toml`. A flag overrides `--set KEY=VALUE`, which overrides the file, which
overrides the default. A flag and a `--set` that give one key different values are refused, and so are
`steps` beside `epochs`. The planner and the trainer check the same rules for every client. Paths begin at the
folder of the file.

    upcycle train --config examples/incident/demo.toml --set training.steps=20
"""


def page() -> str:
    """The page in Markdown."""
    sections: dict[str, list[str]] = {}
    for path, info in leaves(RunFile).items():
        sections.setdefault(path.rpartition(".")[0], []).append(_row(path, info))
    lines = [_INTRODUCTION]
    for name, rows in sections.items():
        lines += [f"## {f'[{name}]' if name else 'Top of the file'}\n", _HEAD, *rows, ""]
    return "\n".join(lines)


_HEAD: Final = (
    "| key | default | limits | flag of train | flag of eval | meaning |\n|---|---|---|---|---|---|"
)


def _row(path: str, info: Any) -> str:
    flags = [f"`--{flags_of(one)[path]}`" if path in flags_of(one) else "" for one in Purpose]
    meaning = " ".join((info.description or "").split()).replace("|", "\\|")
    limits = ", ".join(CHANNELS) if path == "policy.channel" else _limits(info)
    cells = (f"`{path}`", _default(path), limits, *flags, meaning)
    return f"| {' | '.join(cells)} |"


def _default(path: str) -> str:
    train, evaluation = default_text(path, Purpose.TRAIN), default_text(path, Purpose.EVAL)
    if path == "policy.channel":
        return f"{train}; of eval {evaluation}"
    return train if train == evaluation else f"{train}; of eval {evaluation}"


def _limits(info: Any) -> str:
    of_optional = [one for kind in get_args(info.annotation) for one in getattr(kind, "__metadata__", ())]
    known = [one for one in (*info.metadata, *of_optional) if isinstance(one, Limit | OneOf)]
    texts = [one.range_text if isinstance(one, Limit) else ", ".join(one.names) for one in known]
    return "; ".join(texts)
