"""Reports a full disk by folder and size, so that a trainer waits for room."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from safetensors import SafetensorError

from service_kit.errors import StoreFull

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def room_for(what: str, num_bytes: int, folder: Path) -> Iterator[None]:
    """Raises StoreFull where the disk of `folder`, which exists, has no room for what is written inside.

    num_bytes: of all that is written. An error of safetensors has no error number: it counts as a full disk
    where less is free afterwards than all of it takes.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free
        is_full = error.errno in _FULL if isinstance(error, OSError) else free < num_bytes
        if not is_full:
            raise
        raise StoreFull(
            f"room on the disk of {folder} for {what}, {num_bytes} bytes, while {free} bytes are free there",
            hint=f"remove something, or give the process a folder on a larger disk ({error})",
        ) from error
