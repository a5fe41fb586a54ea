"""Log files that processes append to by themselves, so that they go on when the supervisor is gone."""

import os
import shutil
from pathlib import Path
from typing import Final

_KEPT: Final = 3


def open_for_append(path: Path) -> int:
    """A file descriptor for a child's stdout and stderr; the caller closes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def rotate(path: Path, max_bytes: int) -> bool:
    """Past `max_bytes`: copy to `<name>.1` (older ones move up to .3) and empty the file under its writer.

    What is written between copy and truncation is lost: the price of writers that need no pump.
    """
    if not path.exists() or path.stat().st_size <= max_bytes:
        return False
    for number in range(_KEPT - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    shutil.copyfile(path, path.with_name(f"{path.name}.1"))
    os.truncate(path, 0)
    return True


def size_of(path: Path) -> int:
    """Bytes of a log; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def tail(path: Path, lines: int = 8, max_bytes: int = 16_384, *, since: int = 0) -> str:
    """The last lines, for an error message. since: size of the log when that began which is told of; a log
    that is smaller was rotated meanwhile, and counts whole."""
    size = size_of(path)
    if not size:
        return ""
    with path.open("rb") as file:
        file.seek(max(size - max_bytes, since if since <= size else 0))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
