"""An asyncio event loop on a virtual clock, in which simulated processes crash, freeze and wake up.

Nothing waits for real: when no callback is ready, the clock jumps to the next timer. Each callback belongs to
the process in whose context it was scheduled. The callbacks of a process that crashed never run, so it ends
between two steps of any of its tasks, and no `finally` cleans up behind it.
"""

import asyncio
import contextvars
import gc
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)


class NothingLeft(Exception):
    """No callback is ready and no timer is set: every task waits for something that will never come."""


@dataclass(eq=False, slots=True)
class SimulatedProcess:
    """One life of one replica of a service. A restart makes a new one."""

    service: str
    replica: int
    life: int = 1
    is_dead: bool = False
    is_frozen: bool = False
    steps_to_crash: int | None = None
    """It crashes when it is to run for the n-th time from now."""
    down_s: float = 0.5
    """How long it stays away after that."""
    held: list[asyncio.Handle] = field(default_factory=list)
    """What is to run once it wakes up."""
    died_of: BaseException | None = None
    """What ended a part of it that must not end; the process exits then."""

    @property
    def name(self) -> str:
        """Service, replica and life: `planner/0.2` is the second life of its first replica."""
        return f"{self.service}/{self.replica}.{self.life}"


_RUNNING: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar("process", default=None)


def running_process() -> SimulatedProcess | None:
    """The process to which the code that runs now belongs; None: the world around the processes."""
    return _RUNNING.get()


class _Task(asyncio.Task[Any]):
    """Hashed by its number: the order of a set of tasks must not follow from addresses in memory."""

    def __init__(self, number: int, work: Any, **options: Any) -> None:
        self.number = number  # first: asyncio keeps every task in a set
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    """The same."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they became ready; among those of several processes, the seed
    chooses. on_crash: called when a process reached its crash point."""

    _ready: deque[Any]
    _stopping: bool

    def __init__(self, rng: random.Random, on_crash: Callable[[SimulatedProcess], None]) -> None:
        super().__init__()
        self._rng = rng
        self._on_crash = on_crash
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._created = 0
        self.num_callbacks = 0
        self.failure: Exception | None = None
        """Set by a check that finds that the history must not go on."""
        self.is_over = False
        """What is logged from now on, while tasks are ended, is no part of the history."""
        self.set_task_factory(self._new_task)
        self._outside = contextvars.Context()

    def time(self) -> float:
        """Virtual seconds since the history began."""
        return self._now

    def utc_now(self) -> datetime:
        """The same as a moment."""
        return START + timedelta(seconds=self._now)

    def spawn(self, process: SimulatedProcess, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work`, and everything that it starts, as part of a process."""
        context = contextvars.Context()
        context.run(_RUNNING.set, process)
        return self.create_task(work, context=context)

    def later(self, delay_s: float, call: Callable[..., object], *args: object) -> None:
        """Call something outside of all processes, also when the one that asked for it is dead by then."""
        self.call_at(self._now + delay_s, call, *args, context=self._outside)

    def pause_s(self, up_to_s: float) -> float:
        """Some time."""
        return self._rng.random() * up_to_s

    def wake(self, process: SimulatedProcess) -> None:
        """A frozen process goes on: everything that became due meanwhile is due at once."""
        process.is_frozen = False
        self._ready.extend(process.held)
        process.held.clear()

    def abandon(self) -> None:
        """End every task where it is, without running it any further than its `finally` blocks."""
        self.is_over = True
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                task.get_coro().close()
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()

    def _new_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        self._created += 1
        task = _Task(self._created, work, loop=loop, **options)
        self._tasks.append(task)  # kept: a task that is collected would run its `finally` blocks
        return task

    def create_future(self) -> asyncio.Future[Any]:
        """See BaseEventLoop."""
        self._created += 1
        return _Future(self._created, self)

    def _run_once(self) -> None:
        """All callbacks until the loop is to stop: once per history, because a call for each costs."""
        while not self._stopping:
            self._run_next()

    def _run_next(self) -> None:
        handle = self._next()
        process = handle._context.get(_RUNNING) if handle._context is not None else None
        if process is not None:
            if process.is_dead:
                return
            if process.is_frozen:
                process.held.append(handle)
                return
            if process.steps_to_crash is not None:
                process.steps_to_crash -= 1
                if process.steps_to_crash <= 0:
                    self._on_crash(process)
                    return
        self.num_callbacks += 1
        handle._run()
        if self.failure is not None:
            raise self.failure

    def _next(self) -> Any:
        ready = self._ready
        while True:
            while not ready:
                self._advance()
            handle = ready.popleft()
            if not handle._cancelled:
                return handle

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise NothingLeft
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """See BaseEventLoop. Timers of one moment run in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._created += 1
        heapq.heappush(self._timers, (when, self._created, timer))
        return timer

    def _timer_handle_cancelled(self, handle: object) -> None:
        """It is passed over when its moment comes."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Threads would make a history depend on the machine, so the work is done at once."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """There is one thread."""
        return self.call_soon(callback, *args, context=context)

    def _process_events(self, event_list: object) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There is no other thread to wake the loop for."""


def run_virtually(loop: VirtualLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end; then whatever still runs is abandoned. Raises NothingLeft."""
    collects = gc.isenabled()
    gc.disable()  # a collection in the middle would close coroutines at another place each time
    try:
        return loop.run_until_complete(work)
    finally:
        loop.abandon()
        loop.close()
        if collects:
            gc.enable()
