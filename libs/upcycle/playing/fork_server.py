"""A process that has loaded one environment and forks itself for each episode: `python -m` with a file
descriptor, the environment's file and its name.

On the descriptor, a socket of records: `fork` with the episode's socket and the pipe for what it prints,
answered with the pid; `status PID` and `kill PID`, answered with the wait status or `-`. When the socket
closes, everything that was forked is killed. It has no keys and no connection of its parent.
"""

import contextlib
import os
import signal
import socket
import sys
import traceback

from upcycle.environment.loading import load_environment
from upcycle.playing.hosting import be_the_environment

MAX_RECORD_BYTES = 64 * 1024
READY = b"ready"


def serve(control: socket.socket, path: str, name: str) -> None:
    """Until the other side closes the socket."""
    try:
        environment = load_environment(path, name)
    except BaseException:
        control.send(traceback.format_exc(limit=-8)[-MAX_RECORD_BYTES // 4 :].encode())
        raise
    control.send(READY)
    alive: set[int] = set()
    while True:
        record, descriptors, _, _ = socket.recv_fds(control, MAX_RECORD_BYTES, 2)
        if not record:
            break
        word, _, rest = record.decode().partition(" ")
        if word == "fork":
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                control.close()
                channel, output = descriptors
                be_the_environment(environment, socket.socket(fileno=channel), output)
            for descriptor in descriptors:
                os.close(descriptor)
            alive.add(pid)
            control.send(str(pid).encode())
        else:
            control.send(_status(int(rest), alive, kill=word == "kill").encode())
    for pid in alive:
        _kill(pid)


def _status(pid: int, alive: set[int], *, kill: bool) -> str:
    if pid not in alive:
        return "-"
    if kill:
        _kill(pid)
    found, status = os.waitpid(pid, 0 if kill else os.WNOHANG)
    if not found:
        return "-"
    alive.discard(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # what it started and left behind
    return str(status)


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # until the child has made its group, there is only the child
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3])
