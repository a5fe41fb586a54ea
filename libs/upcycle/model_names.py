"""Names of a model, and of one version of it: `incident`, `incident@v12`, `incident@<checkpoint id>`."""

import re
from typing import Final, NamedTuple

from upcycle.errors import UnknownName

_VERSION: Final = re.compile(r"v(0|[1-9]\d{0,17})")
_PADDED_VERSION: Final = re.compile(r"v([0-9]{8,18})")


class NamedVersion(NamedTuple):
    """version: None: head."""

    model: str
    version: int | None


def named_version(name: str) -> NamedVersion:
    """What a name says. Raises UnknownName for one that names no version of its model."""
    model, at, version = name.partition("@")
    if not at or version == "head":
        return NamedVersion(model, None)
    number = _of_checkpoint(model, version) or _VERSION.fullmatch(version)
    if number is None:
        raise UnknownName(
            f"{name!r} names no version of {model!r}",
            f"after '@' comes head, v<number>, or a checkpoint id of `upcycle models checkpoints {model}`",
        )
    return NamedVersion(model, int(number[1]))


def _of_checkpoint(model: str, checkpoint_id: str) -> re.Match[str] | None:
    """The version in the id of one of the model's checkpoints, whose kind, model and version dashes part."""
    kind, _, rest = checkpoint_id.partition("-")
    is_of_model = kind == "ckpt" and rest.startswith(f"{model}-")
    return _PADDED_VERSION.fullmatch(rest.removeprefix(f"{model}-")) if is_of_model else None
