"""Child processes that cannot outlive their parent, even when the parent is killed with -9.

`leashed(argv)` is what to start instead of `argv`: this file runs first in the child, asks the kernel to kill
the process when its parent dies, and becomes the program. Unlike with `preexec_fn` no code runs between fork
and exec, which is unsafe beside threads (gRPC has some). Start it from a thread that lives as long as the
process: to the kernel the starting thread is the parent.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_EXIT_ORPHAN = 125


def leashed(argv: Sequence[str]) -> tuple[str, ...]:
    """The argv that runs `argv` as a child that dies with this process. Linux only; costs about 15 ms."""
    return (sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv)


def _become(parent: int, argv: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before the kernel was asked
        raise SystemExit(_EXIT_ORPHAN)
    os.execvp(argv[0], argv)  # noqa: S606 - the program that our caller names


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
