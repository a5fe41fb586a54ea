"""How an environment's processes confine themselves before they run code of it.

The zygote does once what a child inherits: its cell, a filter on system calls, privileges given up, memory
that others of its user do not read. A forked episode narrows the cell to its folder, and gets its own session
(so that one kill of the process group ends all that it started), a death signal tied to its parent and
resource limits; inherited descriptors are closed. That code runs in the forked child, so it must not wait,
import or allocate much.
"""

import ctypes
import os
import resource
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from scenario_runner.adapters import seccomp
from scenario_runner.adapters.cell import Cell
from scenario_runner.adapters.printed_output import FILE_NAME
from scenario_runner.adapters.privileges import drop_privileges, hide_memory
from upcycle.environment.forking import die_with_parent


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one episode process. 0 means unbounded."""

    address_space_bytes: int = 2 << 30
    file_size_bytes: int = 64 << 20
    cpu_s: int = 120
    open_files: int = 256
    extra_processes: int = 64
    """Processes that this user may have beyond those it had when the zygote started. Not enforced for root by
    the kernel: set `uid` there."""
    uid: int = 0
    """Unprivileged user to become; 0 keeps the runner's."""


class Sandbox:
    """`confine` once in the zygote, `enter` once in each child."""

    def __init__(self, limits: Limits, cell: Cell, *, max_children: int) -> None:
        self._limits = limits
        self._cell = cell
        self._libc = ctypes.CDLL(None, use_errno=True)
        has_filter = seccomp.is_available()
        self._filter = seccomp.build_filter(os.uname().machine, cell.sockets) if has_filter else b""
        self._max_processes = (
            _count_processes(limits.uid or os.getuid()) + max_children + limits.extra_processes
        )

    @property
    def isolation(self) -> list[str]:
        """Names of the measures that confine an episode, for the log."""
        parts = ["session", "rlimits", "private tmp"]
        parts += ["seccomp"] if self._filter else []
        parts += self._cell.isolation
        parts += [f"uid {self._limits.uid}"] if self._limits.uid else []
        return parts

    def confine(self) -> None:
        """Before the zygote loads anything of the environment. Raises OSError."""
        self._cell.enter()
        drop_privileges(self._libc)
        if self._cell.hides_memory:
            hide_memory(self._libc)
        if self._filter:
            seccomp.install(self._filter, self._libc)

    def prepare(self, more_children: int = 0) -> None:
        """Once the environment is loaded: what every child will need. more_children: that it turned out to
        have."""
        self._max_processes += more_children
        self._cell.prepare()

    def enter(self, folder: str, keep: Sequence[int], parent_pid: int, *, is_silent: bool = False) -> None:
        """Confine this process. folder: made here, its private working and temporary directory. keep:
        descriptors that stay open. is_silent: what it prints is dropped. Raises OSError.
        """
        die_with_parent(parent_pid)
        os.setsid()
        os.mkdir(folder, 0o700)
        self._cell.narrow(folder)
        self._redirect_output(folder, is_silent)
        begin = 3
        for descriptor in sorted(keep):
            os.closerange(begin, descriptor)
            begin = descriptor + 1
        os.closerange(begin, 1 << 20)
        os.umask(0o077)
        os.chdir(folder)
        os.environ.update(TMPDIR=folder, HOME=folder)
        tempfile.tempdir = folder
        self._set_limits()
        if self._limits.uid:
            os.chown(folder, self._limits.uid, self._limits.uid)
            os.setgroups([])
            os.setresgid(self._limits.uid, self._limits.uid, self._limits.uid)
            os.setresuid(self._limits.uid, self._limits.uid, self._limits.uid)
            die_with_parent(parent_pid)  # a change of user clears the death signal

    def _redirect_output(self, folder: str, is_silent: bool) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        place = os.devnull if is_silent else f"{folder}/{FILE_NAME}"
        output = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)

    def _set_limits(self) -> None:
        limits = self._limits
        _lower(resource.RLIMIT_CORE, 0)
        for kind, value in (
            (resource.RLIMIT_AS, limits.address_space_bytes),
            (resource.RLIMIT_FSIZE, limits.file_size_bytes),
            (resource.RLIMIT_NOFILE, limits.open_files),
            (resource.RLIMIT_NPROC, self._max_processes),
        ):
            if value:
                _lower(kind, value)
        if limits.cpu_s:
            # At the soft limit the kernel sends SIGXCPU, which names the cause; at the hard limit, SIGKILL.
            _lower(resource.RLIMIT_CPU, limits.cpu_s, spare=5)


def _lower(kind: int, value: int, *, spare: int = 0) -> None:
    _, hard = resource.getrlimit(kind)
    bound = value + spare if hard == resource.RLIM_INFINITY else min(value + spare, hard)
    resource.setrlimit(kind, (min(value, bound), bound))


def _count_processes(uid: int) -> int:
    """How many processes a user has now: RLIMIT_NPROC counts all of them, not only an episode's."""
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                count += entry.stat().st_uid == uid
            except FileNotFoundError:
                continue
    return count
