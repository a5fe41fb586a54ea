"""How policy versions are spelled on an engine's wire.

vLLM keeps one free-form weight version string and stamps it on the tokens that it samples. Ours is the
version number once the canary agreed, and `unproven-<number>` between a reload and its proof on engines that
cannot be asked while they are paused.
"""

import re

_LABEL = re.compile(r"(unproven-)?(0|[1-9]\d{0,18})")
_PINNED = re.compile(r"(?P<model>.+)@v(?P<version>0|[1-9]\d{0,18})")


def proven_label(version: int) -> str:
    """Label of weights whose canary agreed."""
    return str(version)


def unproven_label(version: int) -> str:
    """Label of weights that are loaded and not yet proven."""
    return f"unproven-{version}"


def version_of_label(label: str) -> tuple[int | None, bool]:
    """(version, proven) of a label; (None, False) where nobody stamped a version yet (vLLM: `default`)."""
    found = _LABEL.fullmatch(label)
    if found is None:
        return None, False
    return int(found[2]), found[1] is None


def pinned_name(model: str, version: int) -> str:
    """Name under which an engine serves a pinned version beside the channel's: `incident@v12`."""
    return f"{model}@v{version}"


def pinned_version(name: str) -> int | None:
    """The version in a pinned name, None for a plain slug."""
    found = _PINNED.fullmatch(name)
    return None if found is None else int(found["version"])
