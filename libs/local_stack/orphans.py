"""Finds and kills processes that outlived a supervisor which was killed with -9.

Every process of a stack has the stack's folder in its environment, and so have its children: a grandchild
that left the session and lost its parent is found too. No other process is signalled.
"""

import os
import signal
import time
from pathlib import Path
from typing import Final

from service_kit.child_environment import STACK_MARKER

MARKER: Final = STACK_MARKER
_GONE_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.02


def marked(folder: Path) -> list[int]:
    """Pids of living processes, other than this one, that belong to the stack in `folder`."""
    wanted = f"{MARKER}={folder}".encode()
    return [pid for pid in _pids() if pid != os.getpid() and wanted in _environment(pid)]


def end_marked(folder: Path) -> list[int]:
    """Send SIGKILL to all of them and wait until they are gone; returns the pids that were found."""
    found = marked(folder)
    give_up_at = time.monotonic() + _GONE_TIMEOUT_S
    left = found
    while left and time.monotonic() < give_up_at:
        for pid in left:
            _kill(pid)
        time.sleep(_POLL_S)
        left = marked(folder)
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended in the meantime
        return


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """Variables that the process was started with; empty for a zombie, a process of
    another user, or one that has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
