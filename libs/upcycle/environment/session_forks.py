"""A process for each session of a served environment, forked from one that has imported it.

`SessionForks.start` forks once, before an event loop and threads exist; that process runs the loop of
`upcycle.environment.forking`.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from upcycle.environment.channel.client import ControlChannel
from upcycle.environment.channel.server import ChannelServer
from upcycle.environment.fork_client import Child, ForkClient, ForkFailed
from upcycle.environment.forking import ForkLoop, adopt_orphans, die_with_parent
from upcycle.errors import InfrastructureError

if TYPE_CHECKING:
    from upcycle.environment.core import Environment

FORK_S: Final = 30.0
END_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class SessionProcess:
    """A forked process that speaks the control channel."""

    child: Child
    channel: ControlChannel

    async def ended_how(self) -> str:
        """Why its channel broke, once it did."""
        return await self.child.ended_how(END_S)


class SessionForks:
    """The process that forks, seen from the one that serves."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self._pid = pid
        self._control = control
        self._made: ForkClient | None = None

    @classmethod
    def start(cls, environment: "Environment") -> "SessionForks":
        """Fork it from this process, which has loaded the environment and runs no event loop."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _be_the_fork_server(environment, theirs)
        theirs.close()
        return cls(pid, ours)

    @property
    def num_alive(self) -> int:
        """Session processes that run or are being forked."""
        return self._client.num_children

    @property
    def gone(self) -> "asyncio.Future[None]":
        """Resolves when it has ended. Begins to listen to it, in the running event loop."""
        return self._client.gone

    async def fork(self) -> SessionProcess:
        """A new process with the environment as it was imported. Raises InfrastructureError."""
        try:
            child = await self._client.fork({}, timeout_s=FORK_S)
        except ForkFailed as error:
            raise InfrastructureError(f"the server forks no session: {error}; start it again") from error
        try:
            return SessionProcess(child, await ControlChannel.over(child.sock, speaks_tools=True))
        except BaseException:
            child.sock.close()
            raise

    async def end(self, process: SessionProcess) -> None:
        """Let it shut down, then kill it with what it started. Idempotent."""
        await process.channel.shut_down()
        await process.channel.close()
        with contextlib.suppress(ForkFailed, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._client.kill(process.child)

    def stop(self) -> None:
        """End it with every session process; outside an event loop, or at its end."""
        if self._made is None:
            self._control.close()
        else:
            self._made.close()
        with contextlib.suppress(ChildProcessError):
            deadline = time.monotonic() + END_S
            while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(self._pid, signal.SIGKILL)  # what it forked dies with it
                time.sleep(0.01)

    @property
    def _client(self) -> ForkClient:
        if self._made is None:
            self._made = ForkClient(self._control)
        return self._made


def _be_the_fork_server(environment: "Environment", control: socket.socket) -> NoReturn:
    """It never returns into the caller's stack."""
    status, fork_server = 1, os.getpid()
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the server closes the socket
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(2, 1)  # standard output is the server's: programs read its port there
        adopt_orphans()

        def become(_command: Mapping[str, Any], descriptors: Sequence[int]) -> None:
            (descriptor,) = descriptors
            die_with_parent(fork_server)
            os.setsid()
            os.close(control.fileno())
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            logging.basicConfig(level=logging.WARNING, format="%(message)s")
            logging.getLogger("upcycle.environment").setLevel(logging.INFO)  # what a tool raised
            asyncio.run(_speak(environment, socket.socket(fileno=descriptor)))

        ForkLoop(control, become).run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


async def _speak(environment: "Environment", sock: socket.socket) -> None:
    try:
        await ChannelServer(environment).serve_socket(sock)
    finally:
        await environment.close()
