"""How policy versions are spelled on an engine's wire.

vLLM keeps one free-form weight version string and stamps it on the tokens that it samples. Ours is the
version number once the canary agreed, and `unproven-<number>-after-<number>` between a reload and its proof
on engines that cannot be asked while they are paused; the second number is the version that was proven last.
"""

import re
from dataclasses import dataclass
from typing import Final

_NUMBER = r"(?:0|[1-9]\d{0,18})"
_LABEL = re.compile(rf"(?P<proven>{_NUMBER})|unproven-(?P<loaded>{_NUMBER})-after-(?P<before>{_NUMBER})")
_PINNED = re.compile(rf"(?P<model>.+)@v(?P<version>{_NUMBER})")
NO_VERSION: Final = "default"
"""The label with which vLLM begins: weights of no version. No token of them counts."""


@dataclass(frozen=True, slots=True)
class WeightLabel:
    """What a label says."""

    version: int
    """Of the loaded weights."""
    proven: int
    """The newest version that was proven in this engine; equal to `version` once that is."""

    @property
    def is_proven(self) -> bool:
        """Whether the loaded weights are proven."""
        return self.version == self.proven

    def was_proven(self, later: "WeightLabel") -> bool:
        """Whether a label that the engine has later shows that these weights were proven. Of a version that
        it went back to only that version itself does: the newer one of before may be there again."""
        if self.version < self.proven:
            return later.proven == self.version
        return later.proven >= self.version


def proven_label(version: int) -> str:
    """Label of weights whose canary agreed."""
    return str(version)


def unproven_label(version: int, *, after: int) -> str:
    """Label of weights that are loaded and not yet proven; `after`: the version that served before."""
    return f"unproven-{version}-after-{after}"


def parse_label(label: str) -> WeightLabel | None:
    """What a label says; None for a label without a version (vLLM begins with `default`)."""
    found = _LABEL.fullmatch(label)
    if found is None:
        return None
    if found["proven"] is not None:
        return WeightLabel(int(found["proven"]), int(found["proven"]))
    return WeightLabel(int(found["loaded"]), int(found["before"]))


def version_of_label(label: str) -> tuple[int | None, bool]:
    """(version, proven) of a label; (None, False) where it names none."""
    found = parse_label(label)
    return (None, False) if found is None else (found.version, found.is_proven)


def pinned_name(model: str, version: int) -> str:
    """Name under which an engine serves a pinned version beside the channel's: `incident@v12`."""
    return f"{model}@v{version}"


def pinned_version(name: str) -> int | None:
    """The version in a pinned name, None for a plain slug."""
    found = _PINNED.fullmatch(name)
    return None if found is None else int(found["version"])
