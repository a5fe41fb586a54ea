"""Environments that a platform holds as packed source: how a taskset refers to one, how large it may be."""

import re
from pathlib import Path
from typing import Final

from upcycle.errors import SourceRefused

DEPLOYED: Final = "deployed:"
"""Begins the path of an environment that was deployed; its source digest follows."""
MAX_PACKED_BYTES: Final = 24 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_BEGINNING: Final = re.compile(r"[0-9a-f]{6,63}")


def deployed_path(digest: str) -> str:
    """What stands in the place of the path of its file. Raises SourceRefused for what is no digest."""
    plain = digest.removeprefix(DEPLOYED)
    if _BEGINNING.fullmatch(plain):
        raise SourceRefused(
            f"{digest!r} is only the beginning of a source digest",
            "give all 64 hex digits: `upcycle deploy` prints them, and so does `upcycle deploy --dry-run` "
            "without sending anything",
        )
    if not _DIGEST.fullmatch(plain):
        raise SourceRefused(
            f"{digest!r:.100} names no deployed environment",
            f"use {DEPLOYED} and the 64 hex digits that `upcycle deploy` prints",
        )
    return f"{DEPLOYED}{plain}"


def deployed_digest(path: str) -> str:
    """The source digest of a deployed environment; "" for the path of a file. Raises SourceRefused."""
    return deployed_path(path).removeprefix(DEPLOYED) if path.startswith(DEPLOYED) else ""


def refuse_deployed(path: Path | str) -> None:
    """Raises SourceRefused where a file is needed and the path is of a deployed environment."""
    if str(path).startswith(DEPLOYED):
        raise SourceRefused(
            f"{str(path)!r:.100} is an environment that a platform has, and no file of this machine",
            "play it there: upcycle eval TASKS MODEL",
        )
