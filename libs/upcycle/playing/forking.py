"""Many episodes of one environment, each in a forked process, while an event loop runs here."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from upcycle.environment.channel import ChannelClosed, ControlChannel
from upcycle.environment.fork_client import Child, ForkClient, ForkFailed, ForkTimedOut, ended_text
from upcycle.environment.forking import MAX_PACKET_BYTES, can_fork
from upcycle.environment.loading import load_environment
from upcycle.environment.server_secrets import HiddenValues, in_memory, profile_values
from upcycle.errors import DefinitionError
from upcycle.external.keys import without_keys
from upcycle.playing.hosting import (
    ENDED_WAIT_S,
    EnvironmentHost,
    KeptOutput,
    SameProcessHost,
    ServedHost,
    channel_over,
    left_text,
)
from upcycle.task_rows import EnvironmentRef, Task

if TYPE_CHECKING:
    from upcycle.environment.core import Environment

ANSWER_S: Final = 60.0
"""A fork server answers in milliseconds; a machine may pause."""


class EpisodeHosts(Protocol):
    """Makes the place of each episode."""

    where: str
    """In words."""

    async def new(self, task: Task) -> EnvironmentHost:
        """A fresh one, for this task."""
        ...

    def close(self) -> None:
        """End what is left. Idempotent."""
        ...


class PlainHosts:
    """A host that needs no process of ours."""

    def __init__(self, where: str, make: Callable[[], EnvironmentHost]) -> None:
        self.where = where
        self._make = make

    async def new(self, task: Task) -> EnvironmentHost:
        """One more."""
        return self._make()

    def close(self) -> None:
        """Nothing is left."""


class SameProcessHosts:
    """This process, for one episode after the other: they share the modules of the environment."""

    where = "in this process, one after the other"

    def __init__(self, environment: EnvironmentRef) -> None:
        """Raises UnknownName and DefinitionError."""
        self._environment = load_environment(environment.path, environment.name)
        self._free = asyncio.Lock()

    async def new(self, task: Task) -> EnvironmentHost:
        """Once the one before has ended."""
        await self._free.acquire()
        return _OneOfThem(self._environment, self._free)

    def close(self) -> None:
        """Nothing is left."""


class _OneOfThem(SameProcessHost):
    def __init__(self, environment: "Environment", free: asyncio.Lock) -> None:
        super().__init__(environment)
        self._free: asyncio.Lock | None = free

    async def end(self) -> None:
        """The next one may begin."""
        free, self._free = self._free, None
        if free is not None:
            free.release()


class ForkServer:
    """A child process that forks the environment. It has none of the variables that hold keys."""

    where = "each in a process of its own"

    def __init__(self, environment: EnvironmentRef, cells: Path | None = None) -> None:
        """Returns when it has loaded the environment: make it in a thread. cells: below which each episode
        has a folder, in a cell of its own (upcycle.playing.cells). Raises DefinitionError, SecretMissing."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._name = environment.name
        self._client: ForkClient | None = None
        variables = without_keys(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._cells = cells
        place = [] if cells is None else [str(cells.resolve())]
        arguments = [str(theirs.fileno()), environment.path, environment.name, *place]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "upcycle.playing.fork_server", *arguments],
            env=variables,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        try:
            self._secrets = profile_values(self._ready())
        except BaseException:
            self.close()
            raise

    async def new(self, task: Task) -> "ServedFork":
        """Fork it. Raises ChannelClosed."""
        if self._client is None:
            self._client = ForkClient(self._control)
        folder = "" if self._cells is None else tempfile.mkdtemp(dir=self._cells.resolve())
        read_end, write_end = os.pipe()
        given = [in_memory(self._secrets)] if self._secrets else []
        try:
            child = await self._client.fork({"folder": folder}, (write_end, *given), timeout_s=ANSWER_S)
        except BaseException as error:
            os.close(read_end)
            if isinstance(error, ForkFailed):
                raise ChannelClosed(await asyncio.to_thread(self._why_not, error)) from error
            raise
        finally:
            for descriptor in (write_end, *given):
                os.close(descriptor)
        return ServedFork(self._client, child, KeptOutput(read_end, HiddenValues(self._secrets)), folder)

    def close(self) -> None:
        """With everything that it forked."""
        (self._client or self._control).close()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ready(self) -> Mapping[str, str]:
        """Once it is: the secrets that MCP servers name. Raises DefinitionError."""
        self._control.settimeout(ANSWER_S)
        try:
            said = self._control.recv(MAX_PACKET_BYTES)
            found: dict[str, Any] = json.loads(said) if said else {"broken": "its process ended"}
        except TimeoutError:
            found = {"broken": f"it took longer than {ANSWER_S:g} s"}
        if reason := found.get("broken"):
            raise DefinitionError(f"environment {self._name!r} cannot be loaded: {reason}")
        return dict(found["secrets"])

    def _why_not(self, error: ForkFailed) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(0 if isinstance(error, ForkTimedOut) else ENDED_WAIT_S)
            return f"the process that forks environment {self._name!r} {ended_text(status)}"
        return f"the process that forks environment {self._name!r} does not: {error}"


class ServedFork:
    """A process that a fork server forked: an EnvironmentHost."""

    def __init__(self, client: ForkClient, child: Child, output: KeptOutput, folder: str = "") -> None:
        """folder: of an episode in a cell; it goes with the process."""
        self._client, self._child, self._output = client, child, output
        self._folder = folder

    @property
    def where(self) -> str:
        """In words."""
        return f"in a process of its own ({self._child.pid})"

    def channel(self) -> AbstractAsyncContextManager[ControlChannel]:
        """On our end of the socket pair."""
        return channel_over(self._child.sock)

    def output(self) -> str:
        """Its beginning, and how much more there was."""
        return self._output.text()

    async def ended_how(self) -> str:
        """By its exit status."""
        return left_text(await self._child.status(ENDED_WAIT_S))

    async def end(self) -> None:
        """Kill its process group."""
        with contextlib.suppress(ForkFailed, TimeoutError):
            async with asyncio.timeout(ENDED_WAIT_S):
                await self._client.kill(self._child)
        await asyncio.to_thread(self._output.finish)
        if self._folder:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def hosts_of(environment: EnvironmentRef, cells: Path | None = None) -> EpisodeHosts:
    """Where the episodes of an environment are played. cells: as of ForkServer. Raises UnknownName and
    DefinitionError."""
    if environment.url:
        return PlainHosts(f"at {environment.url}", lambda: ServedHost(environment.url))
    if can_fork():
        return ForkServer(environment, cells)
    return SameProcessHosts(environment)
