"""Why there is no backup, or no restored platform."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from upcycle.errors import Failed, UpcycleError

_OF_FILES: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EIO,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENOENT,
        errno.EBUSY,
        errno.ENAMETOOLONG,
        errno.EMFILE,
    }
)
"""What a file system answers; connections have other numbers."""


class BackupRefused(UpcycleError):
    """Not as things are: the platform runs, or the target holds something. Nothing was changed."""

    kind = "backup_refused"


class BackupDamaged(Failed):
    """Files of a backup are missing, or are not what was written. Nothing was changed."""

    kind = "backup_damaged"


class BackupFailed(Failed):
    """It was begun and could not be finished. The same command may be repeated."""

    kind = "backup_failed"


@contextmanager
def written_to(folder: Path) -> Iterator[None]:
    """A file system that refuses what is written below `folder` leaves the block as BackupFailed."""
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_FILES:
            raise
        raise refused_below(folder, error.strerror or repr(error)) from error


def refused_below(folder: Path, why: str) -> BackupFailed:
    """The error that names folder, what it holds, and what is free."""
    free = "an unknown number of"
    with suppress(OSError, StopIteration):
        there = next(one for one in (folder, *folder.parents) if one.is_dir())
        free = str(shutil.disk_usage(there).free)
    return BackupFailed(
        f"{folder} cannot be written: {why}; {_size_of(folder)} bytes are written, "
        f"{free} bytes are free there",
        "make room or name another folder, then repeat the command",
    )


def _size_of(folder: Path) -> int:
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(parent, name)).st_size
    return size
