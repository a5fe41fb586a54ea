"""Work that is done once per key for all callers that wait for it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SharedResults(Generic[K, V]):
    """Remembers the newest `max_kept` results. A failure reaches those who wait now and is forgotten."""

    def __init__(self, max_kept: int) -> None:
        self._max_kept = max_kept
        self._tasks: dict[K, asyncio.Task[V]] = {}

    async def __call__(self, key: K, work: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of `work` for `key`."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(work())
            task.add_done_callback(lambda done: self._forget_failure(key, done))
            while len(self._tasks) > self._max_kept:
                del self._tasks[next(iter(self._tasks))]
        # Shielded: one waiter that is cancelled must not take the result from the others.
        return await asyncio.shield(task)

    def _forget_failure(self, key: K, done: asyncio.Task[V]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._tasks.get(key) is done:
            del self._tasks[key]
