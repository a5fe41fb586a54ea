"""Runs a set of processes as one thing: started in order, watched, restarted, stopped in reverse order.

Guarantees, on Linux: `down` leaves no process; killing the supervisor with -9 takes its processes along (the
kernel does it), and what escaped even that is found by its environment and ended before the next start.
"""

import asyncio
import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from local_stack.logfile import rotate
from local_stack.managed import Managed, ProcessPhase
from local_stack.orphans import MARKER, end_marked
from local_stack.spec import ProcessSpec, RestartPolicy, StepSpec
from service_kit.background import BackgroundTasks
from service_kit.deadlines import DeadlineExceeded, deadline
from service_kit.private_files import write_private
from upcycle.errors import UpcycleError

_HOUSEKEEPING_S: Final = 2.0
_MAX_LOG_BYTES: Final = 20 * 1024 * 1024
_RECHECK_S: Final = 0.05
STATE_FILE: Final = "state.json"
STOP_SAID_EVERY_S: Final = 5.0
"""Between two lines that name what has not stopped yet."""


class AlreadyRunning(UpcycleError):
    """Another supervisor holds the folder."""

    kind = "already_running"


class UnknownProcess(KeyError):
    """No process of that name is supervised."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What a person wants to know about one process."""

    name: str
    phase: str
    pid: int
    """0 while it does not run."""
    url: str
    http_port: int | None
    log: str
    restarts: int
    started_at: float
    """Seconds since the epoch; 0 before the first start."""
    why_not_ready: str | None


class Supervisor:
    """Owns the processes of one folder; use it from the main thread's event loop."""

    def __init__(
        self,
        folder: Path,
        specs: Sequence[ProcessSpec | StepSpec],
        *,
        env: Mapping[str, str] | None = None,
        policy: RestartPolicy | None = None,
        on_event: Callable[[str], None] | None = None,
        describe: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`env`: base environment of all processes, ours by default. `describe`: more of state.json."""
        self.folder = folder.absolute()
        self._specs = tuple(specs)
        _check_order(specs)
        self._by_name = {spec.name: spec for spec in specs}
        self._policy = policy or RestartPolicy()
        self._on_event = on_event
        self._describe = describe
        self._base = {**(os.environ if env is None else env), MARKER: str(self.folder)}
        self._logs = self.folder / "logs"
        self._managed = {spec.name: self._made(spec) for spec in specs if isinstance(spec, ProcessSpec)}
        self._added: set[str] = set()
        """Of them those that came later."""
        self._started_at = 0.0
        self._lock: IO[str] | None = None
        self._housekeeping = BackgroundTasks("supervisor")

    def _made(self, spec: ProcessSpec) -> Managed:
        return Managed(spec, self._logs / f"{spec.name}.log", self._base, self._policy, self._report)

    @property
    def processes(self) -> tuple[ProcessStatus, ...]:
        """All processes, in starting order."""
        return tuple(_status(managed) for managed in self._managed.values())

    def process(self, name: str) -> ProcessStatus:
        """One process. Raises UnknownProcess."""
        return _status(self._of(name))

    def state(self) -> dict[str, Any]:
        """The content of state.json."""
        return {
            "schema_version": 1,
            "pid": os.getpid(),
            "started_at": self._started_at,
            **self._describe(),
            "processes": [_as_json(status) for status in self.processes],
        }

    async def up(self) -> None:
        """Start everything and return when all of it is ready; on an error stop what runs and raise it.

        Raises AlreadyRunning, GaveUp (with the log's last lines), or what a step raised.
        """
        self._lock = lock_folder(self.folder)
        self._started_at = time.time()
        if swept := await asyncio.to_thread(end_marked, self.folder):
            self._report("supervisor", f"ended {len(swept)} processes that an earlier start had left behind")
        self._housekeeping.spawn("housekeeping", self._rotate_and_record())
        try:
            async with asyncio.TaskGroup() as group:
                done: dict[str, asyncio.Task[None]] = {}
                for (
                    spec
                ) in self._specs:  # a spec may only wait for earlier ones, so no cycle can be written down
                    earlier = [done[name] for name in spec.after]
                    done[spec.name] = group.create_task(self._bring_up(spec, earlier), name=f"up {spec.name}")
        except BaseExceptionGroup as errors:
            await self.down()
            raise _first_cause(errors) from errors
        except BaseException:
            await self.down()
            raise
        self._write_state()

    async def down(self) -> None:
        """Stop everything, dependents first; afterwards nothing of this folder runs."""
        stopped: dict[str, asyncio.Task[None]] = {}
        for name in reversed(self._managed):
            dependents = [stopped[other] for other in stopped if name in self._needs(other)]
            stopped[name] = asyncio.create_task(self._bring_down(name, dependents), name=f"down {name}")
        await self._until_stopped(stopped)
        await self._housekeeping.cancel()
        if left := await asyncio.to_thread(end_marked, self.folder):
            self._report("supervisor", f"ended {len(left)} processes that their services had left behind")
        (self.folder / STATE_FILE).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def _until_stopped(self, stopping: Mapping[str, asyncio.Task[None]]) -> None:
        """Waits for all of them, and names now and then those that it waits for."""
        left = set(stopping.values())
        while left:
            _, left = await asyncio.wait(left, timeout=STOP_SAID_EVERY_S)
            if left:
                names = ", ".join(name for name, task in stopping.items() if task in left)
                self._report("supervisor", f"waiting for {names} to stop")
        await asyncio.gather(*stopping.values())

    async def kill(self, name: str) -> None:
        """kill -9 one process; it is restarted."""
        await self._of(name).kill()

    async def stop(self, name: str) -> None:
        """Stop one process and leave it stopped."""
        await self._of(name).stop()
        self._write_state()

    async def start(self, name: str, *, timeout_s: float | None = None) -> None:
        """Start a process that was stopped, and wait until it is ready."""
        managed = self._of(name)
        managed.start()
        await self.wait_ready(name, timeout_s=managed.spec.start_s if timeout_s is None else timeout_s)

    def add(self, spec: ProcessSpec) -> None:
        """Begin to keep one process more, while the others run. What it names must be there. If it is given
        up, the others go on without it, and `failed` says nothing."""
        added = (self._managed[name].spec for name in sorted(self._added))
        _check_order([*self._specs, *added, spec])
        self._by_name[spec.name] = spec
        self._managed[spec.name] = managed = self._made(spec)
        self._added.add(spec.name)
        managed.start()

    async def remove(self, name: str) -> None:
        """Stop a process that was added, and forget it. Raises UnknownProcess."""
        managed = self._of(name)
        if name not in self._added:
            raise UnknownProcess(f"{name!r} was not added: stop it instead")
        await managed.stop()
        self._added.discard(name)
        del self._managed[name], self._by_name[name]
        self._write_state()

    async def wait_ready(self, name: str, *, timeout_s: float) -> None:
        """Return when the process answers that it is ready. Raises DeadlineExceeded, GaveUp."""
        managed = self._of(name)
        try:
            async with deadline(f"{name} to be ready", timeout_s):
                await _until_ready_now(managed)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{name} to be ready ({managed.why_not_ready})", timeout_s) from error
        self._write_state()

    async def failed(self) -> None:
        """Wait until a process is given up, of those that it was made with; raises GaveUp."""
        while True:
            for name, managed in list(self._managed.items()):
                if managed.phase is ProcessPhase.FAILED and name not in self._added:
                    await managed.until_ready()
            await self._housekeeping_tick()

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.down()

    async def _bring_up(self, spec: ProcessSpec | StepSpec, earlier: Sequence[asyncio.Task[None]]) -> None:
        for task in earlier:
            await asyncio.shield(task)
        if isinstance(spec, StepSpec):
            began = time.monotonic()
            async with deadline(f"step {spec.name}", spec.limit_s):
                await spec.run()
            self._report(spec.name, f"done in {time.monotonic() - began:.1f} s")
            return
        managed = self._managed[spec.name]
        managed.start()
        await managed.until_ready()

    async def _bring_down(self, name: str, dependents: Sequence[asyncio.Task[None]]) -> None:
        if dependents:
            await asyncio.wait(dependents)
        await self._managed[name].stop()

    def _needs(self, name: str) -> set[str]:
        """The processes that `name` needs while it stops, seen through the steps between them."""
        spec = self._by_name[name]
        direct = (*spec.after, *spec.uses) if isinstance(spec, ProcessSpec) else spec.after
        steps = [other for other in direct if isinstance(self._by_name[other], StepSpec)]
        return (set(direct) - set(steps)).union(*(self._needs(step) for step in steps))

    def _of(self, name: str) -> Managed:
        if name not in self._managed:
            raise UnknownProcess(f"{name!r} is not one of {', '.join(self._managed)}")
        return self._managed[name]

    async def _rotate_and_record(self) -> None:
        while True:
            try:
                for managed in tuple(self._managed.values()):
                    rotate(managed.log, _MAX_LOG_BYTES)
                self._write_state()
            except OSError as error:  # a full disk must not take the processes along
                self._report("supervisor", f"cannot write logs or state: {error}")
            await self._housekeeping_tick()

    @staticmethod
    async def _housekeeping_tick() -> None:
        await asyncio.sleep(_HOUSEKEEPING_S)

    def _write_state(self) -> None:
        path = self.folder / STATE_FILE
        write_private(path, json.dumps(self.state(), indent=2).encode())

    def _report(self, name: str, what: str) -> None:
        if self._on_event is not None:
            self._on_event(f"{name}: {what}")


def lock_folder(folder: Path) -> IO[str]:
    """The open lock of a data folder; closing it gives it back. Raises AlreadyRunning."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / ".lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        holder = lock.read() or "unknown"
        lock.close()
        raise AlreadyRunning(
            f"a platform already runs in {folder}, as process {holder}",
            "stop it first, or choose another folder with --data-dir",
        ) from error
    lock.truncate(0)
    print(os.getpid(), end="", file=lock, flush=True)
    return lock


def _check_order(specs: Sequence[ProcessSpec | StepSpec]) -> None:
    """Each spec may name earlier ones only, so that no cycle can be written down."""
    earlier: set[str] = set()
    for spec in specs:
        named = {*spec.after, *(spec.uses if isinstance(spec, ProcessSpec) else ())}
        if unknown := named - earlier:
            raise ValueError(f"{spec.name} names {', '.join(sorted(unknown))}, which come no earlier")
        if spec.name in earlier:
            raise ValueError(f"two specs are called {spec.name}")
        earlier.add(spec.name)


async def _until_ready_now(managed: Managed) -> None:
    """An earlier answer does not count: the process may have been killed since."""
    while True:
        await managed.until_ready()
        pid = managed.pid
        reason = await managed.spec.ready()
        if reason is None and pid is not None and pid == managed.pid:
            return
        managed.why_not_ready = reason or managed.why_not_ready
        await asyncio.sleep(_RECHECK_S)


def _status(managed: Managed) -> ProcessStatus:
    ready = managed.phase is ProcessPhase.READY
    return ProcessStatus(
        name=managed.spec.name,
        phase=managed.phase.value,
        pid=managed.pid or 0,
        url=managed.spec.url,
        http_port=managed.spec.http_port,
        log=str(managed.log),
        restarts=managed.restarts,
        started_at=managed.started_at,
        why_not_ready=None if ready else managed.why_not_ready,
    )


def _as_json(status: ProcessStatus) -> dict[str, Any]:
    return {field: getattr(status, field) for field in status.__slots__}


def _first_cause(error: BaseException) -> BaseException:
    """The error that broke the group, not the cancellations that followed."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
