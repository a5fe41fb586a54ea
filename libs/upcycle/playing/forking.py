"""Many episodes of one environment, each in a forked process, while an event loop runs here."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from upcycle.environment.channel import ChannelClosed, ControlChannel
from upcycle.environment.loading import load_environment
from upcycle.errors import DefinitionError
from upcycle.external.keys import without_keys
from upcycle.playing.fork_server import MAX_RECORD_BYTES, READY
from upcycle.playing.hosting import EnvironmentHost, KeptOutput, SameProcessHost, ServedHost, status_text
from upcycle.task_rows import EnvironmentRef

ANSWER_S: Final = 60.0
"""A fork server answers in milliseconds; a machine may pause."""
_ENDED_WAIT_S: Final = 2.0


class EpisodeHosts(Protocol):
    """Makes the place of each episode."""

    where: str
    """In words."""

    async def new(self) -> EnvironmentHost:
        """A fresh one."""
        ...

    def close(self) -> None:
        """End what is left. Idempotent."""
        ...


class _Plain:
    """A host that needs no process of ours."""

    def __init__(self, where: str, make: Callable[[], EnvironmentHost]) -> None:
        self.where = where
        self._make = make

    async def new(self) -> EnvironmentHost:
        """One more."""
        return self._make()

    def close(self) -> None:
        """Nothing is left."""


class ForkServer:
    """A child process that forks the environment. It has none of the variables that hold keys."""

    where = "each in a process of its own"

    def __init__(self, environment: EnvironmentRef) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(ANSWER_S)
        self._lock, self._name = threading.Lock(), environment.name
        variables = without_keys(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        arguments = [str(theirs.fileno()), environment.path, environment.name]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "upcycle.playing.fork_server", *arguments],
            env=variables,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        said = self._control.recv(MAX_RECORD_BYTES)
        if said != READY:
            self.close()
            reason = said.decode("utf-8", "replace").strip() or "its process ended"
            raise DefinitionError(f"environment {environment.name!r} cannot be loaded: {reason}")

    async def new(self) -> "ServedFork":
        """Fork it."""
        return await asyncio.to_thread(self._fork)

    def ask(self, record: str, descriptors: tuple[int, ...] = ()) -> str:
        """One record and its answer. Raises ChannelClosed, from then on at once, where there is none."""
        with self._lock:
            try:
                socket.send_fds(self._control, [record.encode()], descriptors)
                answer = self._control.recv(MAX_RECORD_BYTES)
            except OSError as error:
                self._control.close()
                raise self._ended() from error
        if not answer:
            raise self._ended()
        return answer.decode()

    def close(self) -> None:
        """With everything that it forked."""
        self._control.close()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> ChannelClosed:
        status = self._process.poll()
        how = "says nothing" if status is None else f"ended with status {status}"
        return ChannelClosed(f"the process that forks environment {self._name!r} {how}")

    def _fork(self) -> "ServedFork":
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        try:
            pid = int(self.ask("fork", (theirs.fileno(), write_end)))
        except ChannelClosed:
            ours.close()
            os.close(read_end)
            raise
        finally:
            theirs.close()
            os.close(write_end)
        return ServedFork(self, pid, ours, KeptOutput(read_end))


class ServedFork:
    """A process that a fork server forked: an EnvironmentHost."""

    def __init__(self, server: ForkServer, pid: int, ours: socket.socket, output: KeptOutput) -> None:
        self._server, self._pid, self._ours, self._output = server, pid, ours, output

    @property
    def where(self) -> str:
        """In words."""
        return f"in a process of its own ({self._pid})"

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[ControlChannel]:
        """On our end of the socket pair."""
        channel = await ControlChannel.over(self._ours, speaks_tools=True)
        try:
            yield channel
        finally:
            await channel.close()

    def output(self) -> str:
        """Its beginning, and how much more there was."""
        return self._output.text()

    def ended_how(self) -> str:
        """By its exit status."""
        give_up_at_s = time.monotonic() + _ENDED_WAIT_S
        while (answer := self._server.ask(f"status {self._pid}")) == "-":
            if time.monotonic() > give_up_at_s:
                return status_text(None)
            time.sleep(0.01)
        return status_text(int(answer))

    def end(self) -> None:
        """Kill its process group."""
        with contextlib.suppress(OSError):
            self._server.ask(f"kill {self._pid}")
        self._output.finish()


def hosts_of(environment: EnvironmentRef) -> EpisodeHosts:
    """Where the episodes of an environment are played. Raises UnknownName and DefinitionError."""
    if environment.url:
        return _Plain(f"at {environment.url}", lambda: ServedHost(environment.url))
    if hasattr(os, "fork"):
        return ForkServer(environment)
    found = load_environment(environment.path, environment.name)
    return _Plain("in this process", lambda: SameProcessHost(found))
