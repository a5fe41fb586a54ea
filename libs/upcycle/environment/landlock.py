"""Landlock without a library: what a process gives up for itself and all its children, for good.

Since Linux 5.13, without privilege, and it binds root. Rights only ever shrink: who is in a domain may enter
a narrower one. What a kernel does not know yet is left out; `lacking` names it.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH, _NET_PORT = 1, 2
_VERSION: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_BIND, _CONNECT = 1 << 0, 1 << 1
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
"""What can be granted for something that is no folder."""

LIST: Final = _LIST
"""Names in a folder and in all below it."""
READ: Final = _EXECUTE | _READ_FILE | _LIST
"""And what is in its files, and to run them."""
WRITE: Final = (1 << 16) - 1

PORTS: Final = "TCP ports"
_NEEDS: Final = (
    (1, "files", "5.13"),
    (3, "cutting files short", "6.2"),
    (4, PORTS, "6.7"),
    (6, "signals", "6.12"),
)
_FILE_RIGHTS: Final = ((5, 16), (3, 15), (2, 14), (1, 13))
"""From which version on a kernel knows so many rights of files."""


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def version() -> int:
    """Of this kernel's Landlock; 0 where it has none or may not be used."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, 0, _VERSION)))


def lacking(known: int | None = None) -> list[str]:
    """What a kernel with that version cannot hold back, with the Linux that can."""
    have = version() if known is None else known
    return [f"{what} (Linux {linux})" for needed, what, linux in _NEEDS if have < needed]


def held(known: int, *, with_ports: bool) -> list[str]:
    """What it can. with_ports: whether it is asked to."""
    return [what for needed, what, _ in _NEEDS if known >= needed and (with_ports or what != PORTS)]


class Ruleset:
    """What is allowed, as open files: made once, entered by as many processes as are forked after it."""

    def __init__(self) -> None:
        self._rules: list[tuple[int, int]] = []

    def allow(self, path: Path | str, access: int) -> None:
        """Grant access to a file, or to a folder with all below it. What does not exist is left out."""
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        self._rules.append((descriptor, access if is_folder else access & _OF_FILES))

    def enter(
        self, known: int, *, ports: Iterable[int] | None = None, more: Sequence[tuple[Path | str, int]] = ()
    ) -> None:
        """Confine this process. known: the kernel's version. ports: of TCP that it may bind and connect to;
        None: all. more: granted to this process alone. Raises OSError."""
        rights = next((1 << bits) - 1 for needed, bits in _FILE_RIGHTS if known >= needed)
        net = _BIND | _CONNECT if ports is not None and known >= 4 else 0
        scoped = _ABSTRACT_SOCKETS | _SIGNALS if known >= 6 else 0
        attributes = struct.pack("=QQQ", rights, net, scoped)
        ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
        for descriptor, access in self._rules:
            _beneath(ruleset, descriptor, access & rights)
        for path, access in more:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            _beneath(ruleset, descriptor, access & rights)
            os.close(descriptor)
        for port in (ports or ()) if net else ():
            _call(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", net, port), 0)
        if _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot set no_new_privs")
        _call(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)

    def close(self) -> None:
        """Once no process will enter it any more."""
        for descriptor, _ in self._rules:
            os.close(descriptor)
        self._rules = []


def _beneath(ruleset: int, descriptor: int, access: int) -> None:
    try:
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, descriptor), 0)
    except OSError as error:
        if error.errno != errno.EBADFD:  # of a file system that needs no rule
            raise


def _call(number: int, *arguments: object) -> int:
    result = int(_libc().syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock system call {number}: {os.strerror(code)}")
    return result
