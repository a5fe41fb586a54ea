"""Commands a process that runs the loop of `upcycle.environment.forking`, from an event loop."""

import asyncio
import contextlib
import itertools
import json
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from upcycle.environment.forking import MAX_PACKET_BYTES

_FULL_PAUSE_S: Final = 0.002
_HAS_ENDED: Final = "the process that forks has ended"


class ForkFailed(Exception):
    """No process was forked."""


class ForkTimedOut(ForkFailed):
    """The process that forks did not answer in time."""


@dataclass(frozen=True, slots=True)
class Child:
    """A forked process. sock: our end of its socketpair, which the caller closes. ended: resolves to its exit
    status (negative: the signal that killed it)."""

    pid: int
    sock: socket.socket
    ended: "asyncio.Future[int]"

    async def ended_how(self, limit_s: float) -> str:
        """Why its end of the socketpair was closed, once it was: waits so long for its end."""
        return ended_text(await self.status(limit_s))

    async def status(self, limit_s: float) -> int | None:
        """Its exit status; None where it does not end within this time."""
        await asyncio.wait([self.ended], timeout=limit_s)
        return self.ended.result() if self.ended.done() else None


class ForkClient:
    """The other side of a ForkLoop. Make it while an event loop runs.

    gone: resolves when that process closed its end, or `close` was called; its children are dead then.
    """

    def __init__(
        self,
        control: socket.socket,
        *,
        on_message: Callable[[Mapping[str, Any]], None] = lambda message: None,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        """on_message: called with what the process says beside the words of its loop."""
        self._control = control
        self._on_other, self._on_gone = on_message, on_gone
        self._tokens = itertools.count(1)
        self._forks: dict[str, asyncio.Future[tuple[int, asyncio.Future[int]]]] = {}
        self._children: dict[int, asyncio.Future[int]] = {}
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        control.setblocking(False)
        self._loop.add_reader(control, self._on_readable)

    @property
    def num_children(self) -> int:
        """Those that run or are being forked."""
        return len(self._children) + len(self._forks)

    @property
    def pids(self) -> list[int]:
        """Of those that run, oldest first."""
        return list(self._children)

    async def fork(
        self, command: Mapping[str, Any], descriptors: Sequence[int] = (), *, timeout_s: float
    ) -> Child:
        """A new child. command, descriptors: what it needs beside its end of a socketpair. Raises ForkFailed,
        ForkTimedOut."""
        if self.gone.done():
            raise ForkFailed(_HAS_ENDED)
        token = str(next(self._tokens))
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        forked = self._forks[token] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                with theirs:
                    await self.send({**command, "fork": token}, (theirs.fileno(), *descriptors))
                pid, ended = await forked
        except BaseException as error:
            ours.close()
            if isinstance(error, TimeoutError):
                raise ForkTimedOut(f"no process was forked within {timeout_s:g} s") from error
            raise
        finally:
            del self._forks[token]
        return Child(pid, ours, ended)

    async def kill(self, child: Child) -> None:
        """Kill it with its process group; returns when it has ended. Raises ForkFailed where the other side
        takes no command."""
        if not child.ended.done():
            await self.send({"kill": child.pid})
            await asyncio.wait([child.ended])  # a deadline must not cancel what others wait for

    def close(self) -> None:
        """Hang up, upon which the process kills its children and ends. Idempotent; the event loop may be
        closed."""
        if self._loop.is_closed():
            self._hang_up()
        else:
            self._end()

    async def send(self, command: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """One that needs no answer; nothing where the other side is gone. Raises ForkFailed."""
        # A full socket buffer means that the process is busy forking; it empties within milliseconds.
        packet = json.dumps(command).encode()
        while not self.gone.done():
            try:
                socket.send_fds(self._control, [packet], list(descriptors))
                return
            except BlockingIOError:
                await asyncio.sleep(_FULL_PAUSE_S)
            except OSError as error:
                raise ForkFailed(f"the process that forks takes no command: {error}") from error

    def _on_readable(self) -> None:
        while not self.gone.done():
            try:
                data = self._control.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self._on_message(json.loads(data))
            else:
                self._end()

    def _on_message(self, message: Mapping[str, Any]) -> None:
        if "forked" in message:
            self._on_forked(str(message["forked"]), int(message["pid"]))
        elif "exited" in message:
            if (ended := self._children.pop(int(message["exited"]), None)) is not None:
                ended.set_result(int(message["status"]))
        elif "unforked" in message:
            self._fail(self._forks.get(message["unforked"]), f"cannot fork: {message['error']}")
        else:
            self._on_other(message)

    def _on_forked(self, token: str, pid: int) -> None:
        ended = self._children[pid] = self._loop.create_future()
        forked = self._forks.get(token)
        if forked is not None and not forked.done():
            forked.set_result((pid, ended))
            return
        # Its caller gave up. Where this does not arrive, the child ends because its socket is closed.
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"kill": pid}).encode())

    def _end(self) -> None:
        if self.gone.done():
            return
        self._loop.remove_reader(self._control)
        self._hang_up()
        self.gone.set_result(None)
        for forked in self._forks.values():
            self._fail(forked, _HAS_ENDED)
        for ended in self._children.values():
            ended.set_result(-signal.SIGKILL)
        self._children.clear()
        self._on_gone()

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()

    def _fail(self, forked: "asyncio.Future[Any] | None", why: str) -> None:
        if forked is not None and not forked.done():
            forked.set_exception(ForkFailed(why))
            forked.exception()  # read here: otherwise asyncio logs it when no caller waits


def ended_text(status: int | None) -> str:
    """How a process ended, by its exit status; None where it has not."""
    if status is None:
        return "closed its channel"
    if status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with exit status {status}"
