"""One supervised process: spawned in its own session, on a leash, restarted while it is wanted."""

import asyncio
import contextlib
import enum
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from local_stack.data_folder import PRIVATE_UMASK
from local_stack.logfile import open_for_append, size_of, tail
from local_stack.spec import ProcessSpec, RestartPolicy
from local_stack.starving import starved_s
from service_kit.child_environment import child_environment
from service_kit.deadlines import DeadlineExceeded, deadline
from service_kit.leash import leashed
from upcycle.errors import Failed

_POLL_S: Final = 0.05
_REAP_S: Final = 10.0
_MAX_STARVED_STARTS: Final = 4

Report = Callable[[str, str], None]
"""Called with the process name and what happened."""


class ProcessPhase(enum.Enum):
    """Where a managed process is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


class GaveUp(Failed):
    """A process did not become ready, again and again; the message ends with its last log lines."""

    kind = "gave_up"


class Managed:
    """Keeps one program running between `start` and `stop`."""

    def __init__(
        self, spec: ProcessSpec, log: Path, env: Mapping[str, str], policy: RestartPolicy, report: Report
    ) -> None:
        self.spec = spec
        self.log = log
        self.phase = ProcessPhase.STOPPED
        self.restarts = 0
        self.started_at = 0.0
        self.ready_after_s: float | None = None
        self.why_not_ready: str = "not started"
        self._env = env
        self._policy = policy
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._last_status = 0
        self._log_began = 0
        """Size of the log when the process was started last."""
        self._restarter: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._failure: GaveUp | None = None

    @property
    def pid(self) -> int | None:
        """Process id, which is also its session and group id; None while it does not run."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def start(self) -> None:
        """Begin to keep it running; returns at once."""
        if self._restarter is not None and not self._restarter.done():
            raise RuntimeError(f"{self.spec.name} is already {self.phase.value}")
        self._failure = None
        self.phase = ProcessPhase.STARTING
        self._restarter = asyncio.create_task(self._keep(), name=f"keep {self.spec.name}")

    async def until_ready(self) -> None:
        """Wait until the program answers that it is ready. Raises GaveUp. The caller sets the deadline."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.phase in (ProcessPhase.READY, ProcessPhase.FAILED, ProcessPhase.STOPPED)
            )
        if self._failure is not None:
            raise self._failure
        if self.phase is not ProcessPhase.READY:
            raise GaveUp(f"{self.spec.name} is {self.phase.value} and was not started")

    async def stop(self) -> None:
        """SIGTERM, a grace period, SIGKILL; then everything left in its process group."""
        restarter, self._restarter = self._restarter, None
        if restarter is not None:
            restarter.cancel()
            await asyncio.wait({restarter})
        process = self._process
        if process is not None and process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            _signal(process.pid, signal.SIGCONT)  # a process under SIGSTOP handles no SIGTERM
            try:
                async with deadline(f"{self.spec.name} to stop", self.spec.stop_s):
                    await process.wait()
            except DeadlineExceeded:
                self._report(self.spec.name, f"did not stop within {self.spec.stop_s:g} s and is killed")
        await self._end_group()
        if restarter is not None:
            await self._become(ProcessPhase.STOPPED)

    async def kill(self) -> None:
        """SIGKILL, to the process alone, as a crash would; the supervisor starts it again."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self.why_not_ready = "killed"
        await self._become(ProcessPhase.RESTARTING)
        _signal(process.pid, signal.SIGKILL)
        async with deadline(f"{self.spec.name} (pid {process.pid}) to be reaped", _REAP_S):
            await process.wait()

    async def _keep(self) -> None:
        try:
            await self._keep_running()
        except Exception as error:  # it is raised to the callers that wait for the process
            self._failure = GaveUp(f"the supervision of {self.spec.name} broke: {error!r}")
            await self._become(ProcessPhase.FAILED)
            raise

    async def _keep_running(self) -> None:
        """Start it, wait for its end, start it again; give up after too many starts that led nowhere."""
        failed_starts = 0
        while True:
            await self._spawn()
            was_ready = await self._until_ready_or_ended()
            if was_ready:
                failed_starts = 0
                await self._process_of().wait()
            await self._end_group()
            failed_starts += 1
            hopeless = not was_ready and self._last_status in self._policy.hopeless
            if hopeless or failed_starts > self._policy.max_failed_starts:
                await self._give_up(failed_starts)
                return
            self.restarts += 1
            self.why_not_ready = f"ended with {self._exit()}; restarting"
            await self._become(ProcessPhase.RESTARTING)
            self._report(self.spec.name, f"ended with {self._exit()}, restart {self.restarts}")
            await asyncio.sleep(self._policy.delay_s(failed_starts))

    async def _spawn(self) -> None:
        inherited = child_environment(of=self._env) if self.spec.is_foreign else self._env
        self._log_began = size_of(self.log)
        descriptor = open_for_append(self.log)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *leashed(self.spec.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env={**inherited, **self.spec.env},
                start_new_session=True,
                umask=PRIVATE_UMASK,
            )
        finally:
            os.close(descriptor)
        self.started_at = time.time()
        self.why_not_ready = "starting"

    async def _until_ready_or_ended(self) -> bool:
        """True: it is ready. False: it ended, or was not ready in time and was killed."""
        process = self._process_of()
        began = time.monotonic()
        while process.returncode is None:
            reason = await self.spec.ready()
            if reason is None and process.returncode is None:
                self.ready_after_s = time.monotonic() - began
                await self._become(ProcessPhase.READY)
                self._report(self.spec.name, f"ready after {self.ready_after_s:.1f} s (pid {process.pid})")
                return True
            self.why_not_ready = reason or "ended"
            if time.monotonic() - began > self._start_s(process.pid):
                why = f"not ready after {self.spec.start_s:g} s ({self.why_not_ready})"
                self._report(self.spec.name, f"{why}; it is killed")
                _signal(process.pid, signal.SIGKILL)
                await process.wait()
                return False
            await asyncio.sleep(_POLL_S)
        return False

    def _start_s(self, pid: int) -> float:
        """The deadline of the start: what it waited for a processor comes on top, up to a multiple. A start
        that is killed because others use the machine would only begin again."""
        return self.spec.start_s + min(starved_s(pid), _MAX_STARVED_STARTS * self.spec.start_s)

    async def _give_up(self, starts: int) -> None:
        self._failure = GaveUp(
            f"{self.spec.name} did not become ready in {starts} starts (last: {self._exit()}, "
            f"{self.why_not_ready}); its log is {self.log}:\n{tail(self.log, since=self._log_began)}"
        )
        await self._become(ProcessPhase.FAILED)
        self._report(self.spec.name, str(self._failure))

    async def _end_group(self) -> None:
        """Kill what the process left behind in its session's group, and reap the process itself."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # nothing is left: the normal case
            os.killpg(process.pid, signal.SIGKILL)
        self._last_status = await process.wait()
        self._process = None  # its id may soon be somebody else's

    async def _become(self, phase: ProcessPhase) -> None:
        async with self._changed:
            self.phase = phase
            self._changed.notify_all()

    def _process_of(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError(f"{self.spec.name} was never spawned")
        return self._process

    def _exit(self) -> str:
        status = self._last_status
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def _signal(pid: int, signum: signal.Signals) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return  # it ended in the meantime; the task that waits for it notices
