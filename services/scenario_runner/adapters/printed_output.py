"""The end of what an episode's process printed. The process may write to the folder of that file: what lies
there may be a link, a pipe, a folder."""

import os
import stat
from pathlib import Path

from upcycle.environment.server_secrets import NOTHING_HIDDEN, HiddenValues

FILE_NAME = "output.txt"


def end_of_output(folder: Path, limit: int = 2000, hidden: HiddenValues = NOTHING_HIDDEN) -> str:
    """The last `limit` bytes as text; "" where no regular file is left. Never blocks. hidden: cut out of
    it, also where they began before."""
    try:
        descriptor = os.open(folder / FILE_NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as printed:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return ""
            printed.seek(max(0, status.st_size - limit))
            text = printed.read(limit).decode("utf-8", "replace")
            return hidden.cut_part(text, lacks_begin=status.st_size > limit).strip()
    except OSError:
        return ""
