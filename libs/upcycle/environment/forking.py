"""The loop of a single-threaded process that forks a child on demand and reaps what its children leave.

`upcycle.environment.fork_client` is the other side. They talk over a SOCK_SEQPACKET socket, one JSON object
per packet. In: {"fork": token, ...} with the child's end of a socketpair attached, and what else the child
is to have, {"kill": pid}. Out: {"forked": token, "pid"} or {"unforked": token, "error"},
{"exited": pid, "status"}. It ends when the other side hangs up. Linux only.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

MAX_PACKET_BYTES: Final = 128 * 1024
_MAX_DESCRIPTORS: Final = 3

Become = Callable[[Mapping[str, Any], Sequence[int]], None]
"""What a child does: (the command that asked for it, the descriptors that came with it: its end of the
socketpair first)."""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


_LATE: Final = {"mcp": "jsonschema.validators"}
"""By the module that is loaded: what it imports only when it first works, and that costs most of a second."""


def can_fork() -> bool:
    """Whether this system has what the loop needs."""
    return sys.platform == "linux"


def _import_late_modules() -> None:
    """Here once, and not in each child at its first call of a tool."""
    for loaded, late in _LATE.items():
        if loaded in sys.modules:
            import_module(late)


class ForkLoop:
    """The loop of the process. `run` returns when the other side is gone."""

    def __init__(self, control: socket.socket, become: Become) -> None:
        _import_late_modules()
        self._control = control
        self._become = become
        self._pid = os.getpid()
        self._children: set[int] = set()
        self._wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Execute commands until the socket is closed, then kill the children that are left."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._serve_one():
                break
        for pid in list(self._children):
            self._kill(pid)
        self._sweep_orphans()

    def _serve_one(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, MAX_PACKET_BYTES, _MAX_DESCRIPTORS)
        if not data:
            return False
        command = json.loads(data)
        if "kill" in command:
            self._kill(int(command["kill"]))
        elif "fork" in command:
            self._fork(command, descriptors)
        return True

    def _fork(self, command: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        token = command["fork"]
        try:
            pid = os.fork()
        except OSError as error:
            _close(descriptors)
            self._send({"unforked": token, "error": str(error)})
            return
        if pid == 0:
            self._be_the_child(command, descriptors)
        _close(descriptors)
        self._children.add(pid)
        self._send({"forked": token, "pid": pid})

    def _be_the_child(self, command: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._become(command, descriptors)
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while True:
            # Kill the group before reaping: until then the kernel does not give the pid to another process.
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if dead is None:
                break
            self._kill_group(dead.si_pid)
            os.waitpid(dead.si_pid, 0)
            if dead.si_pid in self._children:
                self._children.discard(dead.si_pid)
                code = dead.si_status if dead.si_code == os.CLD_EXITED else -dead.si_status
                self._send({"exited": dead.si_pid, "status": code})
        self._sweep_orphans()

    def _sweep_orphans(self) -> None:
        """Kill orphaned descendants of children that left their child's session. The kernel gave them to
        this process, if it is a subreaper.
        """
        for pid in _children_of(self._pid):
            if pid in self._children:
                continue
            try:
                if os.getsid(pid) not in self._children:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _kill(self, pid: int) -> None:
        if pid in self._children:
            self._kill_group(pid)

    def _kill_group(self, pid: int) -> None:
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except BrokenPipeError:
            return  # the other side is gone; the next receive ends the loop


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies. Raises OSError."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; exit if the parent is dead already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def descendants_of(pid: int) -> list[int]:
    """Processes that a process started, and those that they started. None where the system does not say."""
    found, parents = list[int](), [pid]
    while parents:
        parent = parents.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as listed:
                    parents += (children := [int(word) for word in listed.read().split()])
                    found += children
    return found


def _children_of(pid: int) -> list[int]:
    with open(f"/proc/self/task/{pid}/children") as listed:
        return [int(word) for word in listed.read().split()]
