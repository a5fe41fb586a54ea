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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scenario_runner.adapters.cell import FOLDER_PREFIX, CellPlan, CellRules
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentLost,
    PythonEnvironment,
    SourceChanged,
)
from upcycle.environment.deployed import deployed_digest
from upcycle.environment.fork_client import Child, ForkClient, ForkFailed, ForkTimedOut
from upcycle.environment.server_secrets import in_memory
from upcycle.environment.source_files import SourceFiles
from upcycle.environment.source_pack import pack_source

log = logging.getLogger(__name__)

SWEEP_S = 0.5
END_TIMEOUT_S = 5.0

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
    cell: CellRules = field(default_factory=CellRules)


@dataclass(frozen=True, slots=True)
class Forked:
    """A running episode process. servers: what its MCP servers run in that name secrets, beside it."""

    child: Child
    folder: Path
    servers: "Forked | None" = None


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
        self._numbers = itertools.count(1)
        self._process: asyncio.subprocess.Process | None = None
        self._client: ForkClient | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        self._litter: list[Path] = []
        self._sweeping: asyncio.Task[None] | None = None
        self.dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start the process and load the environment. Raises EnvironmentBroken."""
        self._folder.chmod(0o711)  # episodes that run as another user reach their own folders through it
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = "scenario_runner.adapters.zygote_program"
        # What was sent here has what it imports: modules of the fleet's working directory are none of it.
        options = ["-P"] if deployed_digest(self.source.path) else []
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, *options, "-m", program, str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            env=self._environ(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
        )
        theirs.close()
        self._client = ForkClient(ours, on_message=self._on_message, on_gone=self._gone)
        await self._load(self._client)

    async def fork(self, secrets: Mapping[str, str] = MappingProxyType({})) -> Forked:
        """A new episode process. secrets: for the process beside it in which MCP servers run that name them;
        where there are some. Raises EnvironmentLost when the zygote is dead or does not answer."""
        if not secrets:
            return await self._fork({})
        servers = await self._fork_servers(secrets)
        try:
            forked = await self._fork({}, servers.child.sock.fileno())
        except BaseException:
            await self.end(servers)
            raise
        finally:
            servers.child.sock.close()  # the episode has it
        return replace(forked, servers=servers)

    async def _fork_servers(self, secrets: Mapping[str, str]) -> Forked:
        """The values pass the zygote, whose children are the episodes, in a file that it does not read."""
        descriptor = in_memory(secrets)
        try:
            return await self._fork({"has_secrets": True}, descriptor)
        finally:
            os.close(descriptor)

    async def _fork(self, command: Mapping[str, Any], *descriptors: int) -> Forked:
        self.used_at = asyncio.get_running_loop().time()
        if self._client is None:
            raise EnvironmentLost(f"the zygote of {self.source.path} is not running")
        folder = self._folder / str(next(self._numbers))  # the child makes it
        limit_s = self._options.fork_timeout_s
        try:
            child = await self._client.fork(
                {**command, "folder": str(folder)}, descriptors, timeout_s=limit_s
            )
        except BaseException as error:
            self._litter.append(folder)
            if isinstance(error, ForkTimedOut) and not self.has_episodes:
                self._give_up(error)  # while there are some, it is `end` that finds it hanging
            if isinstance(error, ForkFailed):
                raise EnvironmentLost(f"the zygote of {self.source.path} did not fork: {error}") from error
            raise
        return Forked(child, folder)

    @property
    def has_episodes(self) -> bool:
        """Whether episodes run in it or are being started."""
        return self._client is not None and self._client.num_children > 0

    @property
    def pids(self) -> list[int]:
        """Of its episodes' processes, oldest first."""
        return [] if self._client is None else self._client.pids

    async def end(self, forked: Forked) -> int:
        """Kill an episode with everything it started; its folder goes soon after, its socket is the caller's.
        Returns its exit status.

        A zygote that does not do so within END_TIMEOUT_S is killed itself, with all its episodes.
        """
        if forked.servers is not None:
            await self.end(forked.servers)
        ended = forked.child.ended
        try:
            if self._client is not None:
                async with asyncio.timeout(END_TIMEOUT_S):
                    await self._client.kill(forked.child)
        except (TimeoutError, ForkFailed) as error:
            if not ended.done():
                self._give_up(error)
        self._litter.append(forked.folder)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self._sweep())
        return ended.result()

    async def stop(self) -> None:
        """Close the control socket, upon which the zygote kills its episodes and exits; kill it after
        END_TIMEOUT_S."""
        if self._client is not None:
            self._client.close()
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
        if self._client is not None:
            self._client.close()

    async def _sweep(self) -> None:
        """Remove the folders of ended episodes, in batches and in a thread, because disk calls block."""
        while self._litter:
            await asyncio.sleep(SWEEP_S)
            litter, self._litter = self._litter, []
            await asyncio.to_thread(_remove, litter)

    async def _load(self, client: ForkClient) -> None:
        described, packed = self._folder / "description.json", self._folder / "source.zip"
        await asyncio.to_thread(_pack_into, packed, self._files)
        load = {
            "pack": str(packed),
            "root": str(self._files.root) if self._is_in_place else "",
            "attribute": self.source.attribute or self.source.name,
            "limits": asdict(self._options.limits),
            "cell": asdict(self._cell()),
            "max_children": self._options.max_children,
            "fleet_pid": os.getpid(),
            "describe_to": str(described),
        }
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                await client.send({"load": load})
                await self._ready
        except TimeoutError as error:
            raise EnvironmentBroken(
                f"{self.source.path} was not imported within {self._options.start_timeout_s:g} s"
            ) from error
        self.description = json.loads(described.read_text())

    def _cell(self) -> CellPlan:
        source = self._files.root if self._is_in_place else self._folder / "source"
        is_deployed = bool(deployed_digest(self.source.path))
        return self._options.cell.plan(self._folder, source, is_deployed=is_deployed)

    def _on_message(self, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            _settle(self._ready, None)
        elif "broken" in message:
            _fail(self._ready, self._broken(message["broken"]))

    def _broken(self, broken: Mapping[str, str]) -> EnvironmentBroken:
        kind = SourceChanged if broken["kind"] == "source_changed" else EnvironmentBroken
        return kind(f"{self.source.path}: {broken['error']}", broken["detail"])

    def _gone(self) -> None:
        _fail(self._ready, EnvironmentBroken(f"{self.source.path}: its process died while importing it"))
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
