"""Background tasks whose end stops the service."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from service_kit.component import TaskDied
from service_kit.failing import FAILING_WORK, FailingWork
from service_kit.loops import ended


class BackgroundTasks:
    """Keeps track of tasks. One that ends early is an error; `closed` reports the first one."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tasks: set[asyncio.Task[Any]] = set()
        self._death: asyncio.Event = asyncio.Event()
        self._cause: TaskDied | None = None

    def spawn(self, name: str, work: Coroutine[Any, Any, Any], *, may_end: bool = False) -> asyncio.Task[Any]:
        """Run `work`. With `may_end` a normal return is fine; an exception never is."""
        task = asyncio.create_task(work, name=f"{self._owner}/{name}")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._on_done(done, may_end=may_end))
        return task

    def _on_done(self, task: asyncio.Task[Any], *, may_end: bool) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None and may_end:
            return
        if self._cause is None:
            self._cause = _death_of(task.get_name(), error)
            self._death.set()

    async def closed(self) -> None:
        """Wait until a task died; raises TaskDied with its cause."""
        await self._death.wait()
        if self._cause is not None:
            raise self._cause

    async def cancel(self) -> None:
        """Cancel what still runs and wait for its end."""
        await ended(list(self._tasks))


class Worker:
    """A component around one loop `run(stop)`; the loop must watch `stop` and return soon after it is set.

    failing: what the loop has failed at, try after try; an alarm of `ready` after a minute.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[asyncio.Event], Awaitable[None]],
        *,
        ready: Callable[[], str | None] = lambda: None,
        failing: FailingWork | None = None,
    ) -> None:
        self.name = name
        self._run = run
        self._ready = ready
        self.failing = failing or FailingWork()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the loop."""
        self._task = asyncio.create_task(self._loop(), name=self.name)

    async def _loop(self) -> None:
        FAILING_WORK.set(self.failing)
        await self._run(self._stop)

    async def stop(self) -> None:
        """Ask the loop to end and wait for it; the caller's deadline cancels it."""
        self._stop.set()
        if self._task is not None:
            try:
                await self._task
            finally:
                self._task.cancel()

    def ready(self) -> str | None:
        """What the loop reports, once it runs."""
        if self._task is None:
            return "not started"
        return "ended" if self._task.done() else self._ready() or self.failing.alarm()

    async def closed(self) -> None:
        """Wait until the loop ended without being asked to."""
        if self._task is None:
            raise TaskDied(self.name, "watched before it was started")
        await asyncio.wait({self._task})
        if self._stop.is_set():
            await asyncio.Event().wait()
        raise _death_of(self.name, None if self._task.cancelled() else self._task.exception())


def _death_of(name: str, error: BaseException | None) -> TaskDied:
    if isinstance(error, TaskDied):
        return error
    died = TaskDied(name, "it ended although it should run until stopped" if error is None else repr(error))
    died.__cause__ = error
    return died
