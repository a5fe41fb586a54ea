"""Files that hold keys: read only where no other user can, written so that none ever could."""

import os
import stat
from pathlib import Path
from typing import Final

from upcycle.errors import UpcycleError

PRIVATE: Final = 0o600
_STRANGERS: Final = 0o007
"""A group may read one: secrets that are mounted into a container often belong to one."""
_MAX_BYTES: Final = 1 << 20


def read_private(path: Path, what: str, raises: type[UpcycleError]) -> bytes:
    """The content of a file. what: begins the texts, as "the signing key". Raises `raises` where it cannot be
    read, other users can open it, or it is no file of a key."""
    try:  # what is opened is what is looked at, also where somebody replaces the file meanwhile
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            _check(path, found, what, raises)
            return file.read(_MAX_BYTES)
    except IsADirectoryError as error:
        raise raises(f"{what} {path} is no file") from error
    except OSError as error:
        raise raises(f"{what} {path} cannot be read: {error.strerror}") from error


def write_private(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """The file appears whole, also after a loss of power, and is never open to more than `mode` says. Its
    folder is made, private."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check(path: Path, found: os.stat_result, what: str, raises: type[UpcycleError]) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise raises(f"{what} {path} is no file")
    if found.st_mode & _STRANGERS:
        raise raises(f"other users can open {what} {path}", f"chmod 600 {path}")
    if found.st_size > _MAX_BYTES:
        raise raises(f"{what} {path} has {found.st_size} bytes, and a key at most {_MAX_BYTES}")
