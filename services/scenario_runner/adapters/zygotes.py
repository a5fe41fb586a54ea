"""Starts one zygote process per environment file, has it fork episode processes, and ends them."""

import asyncio
import itertools
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scenario_runner.adapters.sandbox import Limits
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentLost,
    PythonEnvironment,
    SourceChanged,
)
from upcycle.environment.forking import MAX_PACKET_BYTES
from upcycle.environment.source_files import SourceFiles
from upcycle.environment.source_pack import pack_source

log = logging.getLogger(__name__)

SWEEP_S = 0.5
END_TIMEOUT_S = 5.0
FOLDER_PREFIX = "upcycle-env-"

_INHERITED = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TZ")


@dataclass(frozen=True, slots=True)
class ZygoteOptions:
    """How zygotes are started. environment_variables: passed on to environments; everything else is scrubbed,
    so that the platform's own secrets stay out of their reach."""

    limits: Limits
    max_children: int
    start_timeout_s: float
    fork_timeout_s: float
    environment_variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forked:
    """A running episode process. ended: resolves to its exit status (negative: the signal that killed it)."""

    pid: int
    sock: socket.socket
    folder: Path
    ended: "asyncio.Future[int]"


class WarmEnvironment:
    """One warm process of one environment, loaded from one source. `start` once; `dead` resolves when it is
    gone. files: its source. is_in_place: whether they lie where the environment is; else they are laid into
    the zygote's folder."""

    def __init__(
        self, source: PythonEnvironment, options: ZygoteOptions, files: SourceFiles, *, is_in_place: bool
    ) -> None:
        self.source = source
        self.source_digest = files.digest
        self._files = files
        self._is_in_place = is_in_place
        self.used_at = asyncio.get_running_loop().time()
        self.description: Mapping[str, Any] = {}
        self._options = options
        self._tokens = itertools.count(1)
        self._forks: dict[str, asyncio.Future[tuple[int, asyncio.Future[int]]]] = {}
        self._episodes: dict[int, asyncio.Future[int]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        self._litter: list[Path] = []
        self._sweeping: asyncio.Task[None] | None = None
        self.dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start the process and load the environment. Raises EnvironmentBroken."""
        self._folder.chmod(0o711)  # episodes that run as another user reach their own folders through it
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        program = "scenario_runner.adapters.zygote_program"
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", program, str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            env=self._environ(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
        theirs.close()
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._on_readable)
        await self._load(ours)

    async def fork(self) -> Forked:
        """A new episode process. Raises EnvironmentLost when the zygote is dead or does not answer."""
        self.used_at = asyncio.get_running_loop().time()
        if self._control is None or self.dead.done():
            raise EnvironmentLost(f"the zygote of {self.source.path} is not running")
        token = str(next(self._tokens))
        folder = self._folder / token  # the child makes it
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._forks[token] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._options.fork_timeout_s):
                with theirs:
                    await self._send({"fork": token, "folder": str(folder)}, theirs.fileno())
                pid, ended = await self._forks[token]
        except BaseException as error:
            ours.close()
            self._litter.append(folder)
            if isinstance(error, TimeoutError):
                if not self._episodes:  # while there are some, it is `end` that finds it hanging
                    self._give_up(error)
                raise EnvironmentLost(f"the zygote of {self.source.path} did not fork: {error!r}") from error
            raise
        finally:
            self._forks.pop(token, None)
        return Forked(pid, ours, folder, ended)

    @property
    def has_episodes(self) -> bool:
        """Whether episodes run in it or are being started."""
        return bool(self._episodes or self._forks)

    async def end(self, forked: Forked) -> int:
        """Kill an episode with everything it started; its folder goes soon after, its socket is the caller's.
        Returns its exit status.

        A zygote that does not do so within END_TIMEOUT_S is killed itself, with all its episodes.
        """
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                if not forked.ended.done():
                    await self._send({"kill": forked.pid})
                    await asyncio.wait([forked.ended])  # a deadline must not cancel what others wait for
        except (TimeoutError, EnvironmentLost) as error:
            if not forked.ended.done():
                self._give_up(error)
        self._litter.append(forked.folder)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())
        return forked.ended.result()

    async def stop(self) -> None:
        """Close the control socket, upon which the zygote kills its episodes and exits; kill it after
        END_TIMEOUT_S."""
        if self._control is not None:
            self._control.shutdown(socket.SHUT_RDWR)
        if self._process is not None:
            try:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError as error:
                self._give_up(error)
                await self._process.wait()
        self._gone()
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill it with its episodes, at once; `dead` follows."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _give_up(self, why: Exception) -> None:
        log.warning("zygote_killed", extra={"path": self.source.path, "why": repr(why)})
        self.kill()
        self._gone()

    async def _sweep(self) -> None:
        """Remove the folders of ended episodes, in batches and in a thread, because disk calls block."""
        while self._litter:
            await asyncio.sleep(SWEEP_S)
            litter, self._litter = self._litter, []
            await asyncio.to_thread(_remove, litter)

    async def _load(self, control: socket.socket) -> None:
        described, packed = self._folder / "description.json", self._folder / "source.zip"
        await asyncio.to_thread(_pack_into, packed, self._files)
        load = {
            "pack": str(packed),
            "root": str(self._files.root) if self._is_in_place else "",
            "attribute": self.source.attribute or self.source.name,
            "limits": asdict(self._options.limits),
            "max_children": self._options.max_children,
            "fleet_pid": os.getpid(),
            "describe_to": str(described),
        }
        control.send(json.dumps({"load": load}).encode())
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                await self._ready
        except TimeoutError as error:
            raise EnvironmentBroken(
                f"{self.source.path} was not imported within {self._options.start_timeout_s:g} s"
            ) from error
        self.description = json.loads(described.read_text())

    async def _send(self, command: Mapping[str, Any], descriptor: int | None = None) -> None:
        # A full socket buffer means that the zygote is busy forking; it empties within milliseconds.
        packet = json.dumps(command).encode()
        descriptors = [] if descriptor is None else [descriptor]
        while self._control is not None and not self.dead.done():
            try:
                socket.send_fds(self._control, [packet], descriptors)
                return
            except BlockingIOError:
                await asyncio.sleep(0.002)
            except OSError as error:
                raise EnvironmentLost(f"the zygote of {self.source.path} is gone: {error}") from error

    def _on_readable(self) -> None:
        assert self._control is not None  # noqa: S101 - the reader is removed with the socket
        while True:
            try:
                data = self._control.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._gone()
                return
            self._on_message(json.loads(data))

    def _on_message(self, message: Mapping[str, Any]) -> None:
        if "forked" in message:
            pid = int(message["pid"])
            ended = self._episodes[pid] = asyncio.get_running_loop().create_future()
            _settle(self._forks.get(message["forked"]), (pid, ended))
        elif "exited" in message:
            _settle(self._episodes.pop(int(message["exited"]), None), int(message["status"]))
        elif "unforked" in message:
            _fail(self._forks.get(message["unforked"]), EnvironmentLost(f"cannot fork: {message['error']}"))
        elif "ready" in message:
            _settle(self._ready, None)
        elif "broken" in message:
            _fail(self._ready, self._broken(message["broken"]))

    def _broken(self, broken: Mapping[str, str]) -> EnvironmentBroken:
        kind = SourceChanged if broken["kind"] == "source_changed" else EnvironmentBroken
        return kind(f"{self.source.path}: {broken['error']}", broken["detail"])

    def _gone(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        lost = EnvironmentLost(f"the zygote of {self.source.path} died")
        _fail(self._ready, EnvironmentBroken(f"{self.source.path}: its process died while importing it"))
        for fork in self._forks.values():
            _fail(fork, lost)
        for episode in self._episodes.values():
            _settle(episode, -9)  # children die with their zygote
        self._episodes.clear()
        _settle(self.dead, None)

    def _environ(self) -> dict[str, str]:
        names = (*_INHERITED, *self._options.environment_variables)
        kept = {name: os.environ[name] for name in names if name in os.environ}
        return {**kept, "PYTHONUNBUFFERED": "1", "HOME": str(self._folder), "OMP_NUM_THREADS": "1"}


def remove_leftovers() -> None:
    """Remove folders of killed fleets: the pid in such a folder's name belongs to no process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*-*"):
        pid = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _pack_into(path: Path, files: SourceFiles) -> None:
    path.write_bytes(pack_source(files))


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _settle(future: "asyncio.Future[Any] | None", value: Any) -> None:
    if future is not None and not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any] | None", error: Exception) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()  # read here: otherwise asyncio logs it when no caller waits
