"""The folder of a stack is its user's alone: it holds keys, held-out tasks and what people wrote."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

PRIVATE_UMASK: Final = 0o077
_FOLDER_MODE: Final = 0o700
_OTHERS: Final = 0o077
_OURS: Final = frozenset({
    ".lock", "bus", "cache", "credentials.json", "gateway.key", "logs", "nats", "operator.key", "report.json",
    "s3", "signing", "sql", "state", "state.json",
})  # fmt: skip
"""What stacks write into their folder, each perhaps as NAME.partial."""


def keep_private() -> None:
    """What this process and those that it starts write from now on is readable by their user alone."""
    os.umask(PRIVATE_UMASK)


def make_private(folder: Path) -> str:
    """Make the folder of a stack; or close, once, what others can open of one that was made before. Returns a
    line on what was closed, or "". Raises OSError.

    A folder that holds other things too (`--data-dir .`) stays as it is, and so do they."""
    if not folder.exists():
        folder.mkdir(mode=_FOLDER_MODE, parents=True)
        return ""
    status = folder.stat()
    if status.st_uid != os.geteuid():  # who could change what runs as us
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {status.st_uid})")
    entries = [Path(entry.path) for entry in os.scandir(folder)]
    ours = [entry for entry in entries if entry.name.removesuffix(".partial") in _OURS]
    was = stat.S_IMODE(status.st_mode)
    if not was & _OTHERS:
        return ""
    has_others = len(ours) < len(entries)
    if not has_others:
        folder.chmod(was & ~_OTHERS)
    if not (closed := sum(map(_close, _with_all_below(ours)))):
        return ""
    what = "of a platform in it" if has_others else f"in it, and it itself (mode {was:04o}),"
    return f"{folder}: {closed} files and folders {what} were open to other users, now to their own alone"


def _with_all_below(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        yield path
        for parent, folders, files in os.walk(path):  # follows no link
            yield from (Path(parent, one) for one in (*folders, *files))


def _close(path: Path) -> bool:
    """Whether others could open it. A link is left alone: what it leads to may be anybody's."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode) or not mode & _OTHERS:
        return False
    path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
    return True
