"""What a process that is root gives up of it, and what other processes of its user may not read in it.

Root that may trace processes, load modules or make devices walks through every other wall; it reads the
variables of any process, for example, past Landlock. For a process that is not root there is nothing to do.
"""

import ctypes
import os
import struct
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_CAPABILITY_VERSION_3: Final = 0x20080522
_LAST_CAPABILITY: Final = 63
_KEPT: Final = (0, 1, 3, 4, 5, 6, 7, 10)
"""chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service: those of files and users, and
to listen on a port below 1024."""


def drop_privileges(libc: ctypes.CDLL) -> None:
    """Keep what concerns files and users. Raises OSError."""
    if os.geteuid() != 0:
        return
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in _KEPT:
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # an unknown or a missing one is no matter
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    held = ctypes.create_string_buffer(24)
    _check(libc.capget(header, held), "read its capabilities")
    kept = sum(1 << capability for capability in _KEPT)
    permitted = struct.unpack("=6I", held.raw)[1] & kept
    _check(libc.capset(header, struct.pack("=6I", permitted, permitted, 0, 0, 0, 0)), "give up capabilities")


def hide_memory(libc: ctypes.CDLL) -> None:
    """Children that run another program, and other processes of the same user, read neither its memory nor
    its variables. Raises OSError."""
    _check(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "become undumpable")


def _check(status: int, what: str) -> None:
    if status:
        raise OSError(ctypes.get_errno(), f"a process cannot {what}")
