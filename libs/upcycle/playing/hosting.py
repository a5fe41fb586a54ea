"""Where an environment runs while an episode is played: in a forked process, as on the platform, in this
process, or where it is served. What a forked one prints is kept, not shown as it comes."""

import asyncio
import contextlib
import io
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from upcycle.environment.channel import ChannelServer, ControlChannel
from upcycle.environment.fork_client import ended_text
from upcycle.environment.forking import descendants_of
from upcycle.environment.server_secrets import NOTHING_HIDDEN, HiddenValues, profile_values
from upcycle.external.keys import forget_keys
from upcycle.playing.errors import PlayRefused
from upcycle.raised import STOP_EXITING
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.environment.core import Environment

MAX_OUTPUT_BYTES: Final = 64 * 1024
ENDED_WAIT_S: Final = 2.0
_CLOSE_WAIT_S: Final = 30.0
"""In this process an environment closes what it attached, such as MCP servers, before its loop ends."""


class EnvironmentHost(Protocol):
    """Where the environment of one episode runs."""

    @property
    def where(self) -> str:
        """In words, for the person who plays."""
        ...

    def channel(self) -> AbstractAsyncContextManager[ControlChannel]:
        """The control channel to it, for the length of the episode."""
        ...

    def output(self) -> str:
        """What it printed, at most MAX_OUTPUT_BYTES of it; empty where it prints to this terminal."""
        ...

    async def ended_how(self) -> str:
        """Why the channel broke, once it did."""
        ...

    async def end(self) -> None:
        """Stop it with everything it started. Idempotent."""
        ...


class KeptOutput:
    """The beginning of what is written into a pipe, and how much more there was. hidden: cut out of it."""

    def __init__(self, read_end: int, hidden: HiddenValues = NOTHING_HIDDEN) -> None:
        self._hidden = hidden
        self._kept, self._num_bytes = bytearray(), 0
        self._reader = threading.Thread(target=self._read, args=(read_end,), daemon=True)
        self._reader.start()

    def text(self) -> str:
        """As it is so far."""
        more = self._num_bytes - len(self._kept)
        text = self._hidden.cut_part(bytes(self._kept).decode("utf-8", "replace"), lacks_end=more > 0)
        return f"{text}\n[{amount(more, 'more byte was', 'more bytes were')} printed]" if more else text

    def finish(self) -> None:
        """Wait until its writers are gone, for a moment."""
        self._reader.join(ENDED_WAIT_S)

    def _read(self, read_end: int) -> None:
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            while data := pipe.read(MAX_OUTPUT_BYTES):
                self._num_bytes += len(data)
                self._kept += data[: MAX_OUTPUT_BYTES - len(self._kept)]


class ForkedHost:
    """A forked process. Make it before an event loop runs in this process. Raises SecretMissing."""

    def __init__(self, environment: "Environment") -> None:
        secrets = profile_values(environment.servers.secrets)
        self._ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._ours.close()
            os.close(read_end)
            be_the_environment(environment, theirs, write_end, secrets)
        theirs.close()
        os.close(write_end)
        self._status: int | None = None
        self._output = KeptOutput(read_end, HiddenValues(secrets))

    @property
    def where(self) -> str:
        """In words."""
        return f"in a process of its own ({self.pid}), as on the platform"

    def channel(self) -> AbstractAsyncContextManager[ControlChannel]:
        """On our end of the socket pair."""
        return channel_over(self._ours)

    def output(self) -> str:
        """Its beginning, and how much more there was."""
        return self._output.text()

    async def ended_how(self) -> str:
        """By its exit status."""
        await asyncio.to_thread(self._wait, ENDED_WAIT_S)
        return left_text(self._status)

    async def end(self) -> None:
        """Kill its process group, and what it started in sessions of their own, as MCP servers are."""
        started = descendants_of(self.pid)  # asked before: they lose their parent with it
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid in started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(self._wait, ENDED_WAIT_S)
        await asyncio.to_thread(self._output.finish)

    def _wait(self, limit_s: float) -> None:
        waiter = threading.Thread(target=self._reap, daemon=True)
        waiter.start()
        waiter.join(limit_s)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def left_text(status: int | None) -> str:
    """How the process of an episode ended by itself, and what its author does about an exit."""
    is_exit = status is not None and status >= 0
    return f"its process {ended_text(status)}" + (f"; {STOP_EXITING}" if is_exit else "")


@asynccontextmanager
async def channel_over(sock: socket.socket) -> AsyncIterator[ControlChannel]:
    """The control channel to a forked environment, closed at the end."""
    channel = await ControlChannel.over(sock, speaks_tools=True)
    try:
        yield channel
    finally:
        await channel.shut_down()
        await channel.close()


def be_the_environment(
    environment: "Environment", sock: socket.socket, output: int, secrets: Mapping[str, str]
) -> NoReturn:
    """The child: it never returns into the caller's stack. secrets: that its MCP servers name."""
    status = 1
    try:
        os.setsid()
        forget_keys()
        environment.servers.give(secrets)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, nothing), (1, output), (2, output)):
            os.dup2(source, target)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # the process may be killed before it ends
        logging.basicConfig(level=logging.WARNING, format="%(message)s", force=True)
        logging.getLogger("upcycle.environment").setLevel(logging.INFO)  # what a tool raised, with its lines
        asyncio.run(_serve(environment, sock))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


async def _serve(environment: "Environment", sock: socket.socket) -> None:
    try:
        await ChannelServer(environment).serve_socket(sock)
    finally:
        await environment.close()


class SameProcessHost:
    """This process: a debugger reaches the environment, and it prints to this terminal."""

    def __init__(self, environment: "Environment") -> None:
        self._environment = environment

    @property
    def where(self) -> str:
        """In words."""
        return "in this process"

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[ControlChannel]:
        """A socket pair with both ends here."""
        ours, theirs = socket.socketpair()
        serving = asyncio.create_task(_serve(self._environment, theirs))
        try:
            async with channel_over(ours) as channel:
                yield channel
        finally:
            await asyncio.wait([serving], timeout=_CLOSE_WAIT_S)

    def output(self) -> str:
        """Nothing: it was seen."""
        return ""

    async def ended_how(self) -> str:
        """Without a reason."""
        return "it closed the channel"

    async def end(self) -> None:
        """Nothing to stop."""


class ServedHost:
    """An environment that is served at tcp://host:port. name: that it must have, where it tells one."""

    def __init__(self, url: str, name: str = "") -> None:
        self._url, self._name = url, name

    @property
    def where(self) -> str:
        """In words."""
        return f"at {self._url}"

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[ControlChannel]:
        """Connected, and greeted. Raises NothingServed where nothing answers, PlayRefused where another
        environment does."""
        channel = await ControlChannel.connect(self._url)
        try:
            served = (await channel.hello()).name
            if self._name and served and served != self._name:
                raise PlayRefused(
                    f"{self._url} serves environment {served!r}, and the tasks are of {self._name!r}",
                    "serve the environment that declares their scenarios, or choose its tasks",
                )
            yield channel
        finally:
            await channel.close()

    def output(self) -> str:
        """Nothing: it is printed there."""
        return ""

    async def ended_how(self) -> str:
        """Without a reason."""
        return f"{self._url} closed the channel"

    async def end(self) -> None:
        """It is not ours."""
