"""A process for each session of a served environment, forked from one that has imported it.

The parent's side: `SessionForks.start` forks once, before an event loop and threads exist; that process runs
the loop of `upcycle.environment.forking`. On a system that cannot do so, `can_fork_sessions` is false.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from upcycle.environment.channel.client import ControlChannel
from upcycle.environment.channel.server import ChannelServer
from upcycle.environment.forking import MAX_PACKET_BYTES, ForkLoop, adopt_orphans, die_with_parent
from upcycle.errors import InfrastructureError

if TYPE_CHECKING:
    from upcycle.environment.core import Environment

FORK_S: Final = 30.0
END_S: Final = 5.0


Forked = tuple[int, "asyncio.Future[int]"]


def can_fork_sessions() -> bool:
    """Whether this system has what the loop of forking needs."""
    return sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class SessionProcess:
    """A forked process that speaks the control channel. ended: resolves to its exit status (negative: the
    signal that killed it)."""

    pid: int
    channel: ControlChannel
    ended: "asyncio.Future[int]"

    async def ended_how(self) -> str:
        """Why its channel broke, once it did."""
        await asyncio.wait([self.ended], timeout=END_S)
        if not self.ended.done():
            return "closed its channel"
        status = self.ended.result()
        if status < 0:
            return f"was killed by signal {-status} ({signal.Signals(-status).name})"
        return f"ended with exit status {status}"


class SessionForks:
    """The process that forks, seen from the one that serves. gone: resolves when it has ended."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self._pid = pid
        self._control = control
        self._tokens = itertools.count(1)
        self._forks: dict[str, asyncio.Future[Forked]] = {}
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._gone: asyncio.Future[None] | None = None

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
        ours.setblocking(False)
        return cls(pid, ours)

    @property
    def num_alive(self) -> int:
        """Session processes that run or are being forked."""
        return len(self._ended) + len(self._forks)

    @property
    def gone(self) -> "asyncio.Future[None]":
        """Begins to listen to it, in the running event loop."""
        if self._gone is None:
            loop = asyncio.get_running_loop()
            self._gone = loop.create_future()
            loop.add_reader(self._control, self._on_readable)
        return self._gone

    async def fork(self) -> SessionProcess:
        """A new process with the environment as it was imported. Raises InfrastructureError."""
        if self.gone.done():
            raise InfrastructureError("the process that forks sessions has ended; start the server again")
        token = str(next(self._tokens))
        ours, theirs = socket.socketpair()
        forked: asyncio.Future[Forked] = asyncio.get_running_loop().create_future()
        self._forks[token] = forked
        try:
            with theirs:
                self._send({"fork": token}, theirs.fileno())
            async with asyncio.timeout(FORK_S):
                pid, ended = await forked
            channel = await ControlChannel.over(ours, speaks_tools=True)
        except BaseException as error:
            ours.close()
            if isinstance(error, TimeoutError):
                raise InfrastructureError(f"no process was forked within {FORK_S:g} s") from error
            raise
        finally:
            self._forks.pop(token, None)
        return SessionProcess(pid, channel, ended)

    async def end(self, process: SessionProcess) -> None:
        """Kill it with what it started. Idempotent."""
        await process.channel.close()
        if not process.ended.done():
            with contextlib.suppress(OSError):
                self._send({"kill": process.pid})
            await asyncio.wait([process.ended], timeout=END_S)

    def stop(self) -> None:
        """End it with every session process; outside an event loop, or at its end."""
        if self._gone is not None and not self._gone.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._gone.get_loop().remove_reader(self._control)
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            deadline = time.monotonic() + END_S
            while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(self._pid, signal.SIGKILL)  # what it forked dies with it
                time.sleep(0.01)

    def _send(self, command: Mapping[str, Any], descriptor: int | None = None) -> None:
        socket.send_fds(
            self._control, [json.dumps(command).encode()], [] if descriptor is None else [descriptor]
        )

    def _on_readable(self) -> None:
        while True:
            try:
                data = self._control.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._is_gone()
                return
            self._on_message(json.loads(data))

    def _on_message(self, message: Mapping[str, Any]) -> None:
        if "forked" in message:
            pid = int(message["pid"])
            ended = self._ended[pid] = asyncio.get_running_loop().create_future()
            forked = self._forks.get(message["forked"])
            if forked is None or forked.done():  # its caller gave up
                self._send({"kill": pid})
            else:
                forked.set_result((pid, ended))
        elif "exited" in message:
            if (over := self._ended.pop(int(message["exited"]), None)) is not None:
                over.set_result(int(message["status"]))
        elif (forked := self._forks.get(message.get("unforked", ""))) and not forked.done():
            forked.set_exception(InfrastructureError(f"cannot fork a process: {message['error']}"))

    def _is_gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control)
        for forked in self._forks.values():
            if not forked.done():
                forked.set_exception(InfrastructureError("the process that forks sessions has ended"))
        for ended in self._ended.values():
            ended.set_result(-signal.SIGKILL)
        self._ended.clear()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)


def _be_the_fork_server(environment: "Environment", control: socket.socket) -> NoReturn:
    """It never returns into the caller's stack."""
    status, fork_server = 1, os.getpid()
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # at Ctrl-C the server closes the socket
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.dup2(2, 1)  # standard output is the server's: programs read its port there
        adopt_orphans()

        def become(_command: Mapping[str, Any], descriptor: int) -> None:
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
