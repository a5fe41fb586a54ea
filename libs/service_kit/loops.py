"""Loops that run until their service stops."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from service_kit.errors import as_errors
from service_kit.failing import failing_work
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)
A = TypeVar("A")
B = TypeVar("B")


@contextmanager
def one_piece(what: str, *, of: str = "") -> Iterator[None]:
    """Around one piece of a loop's work, in which a bug must not end the loop: it is logged and raised as
    Unavailable, so that the loop does its other work and tries this again. A piece that fails for a minute is
    an alarm of /readyz. of: the id of the run that it is done for.
    """
    with failing_work().piece(what, of), _bugs_as_unavailable(what):
        yield


@contextmanager
def _bugs_as_unavailable(what: str) -> Iterator[None]:
    try:
        with as_errors():
            yield
    except Unavailable:
        raise
    except Exception as error:
        log.exception("work_failed", extra={"work": what})
        raise Unavailable(f"{what}: {error!r}") from error


@asynccontextmanager
async def first_of(
    one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]
) -> AsyncIterator[tuple[asyncio.Task[A], asyncio.Task[B]]]:
    """Both as tasks, once at least one of them has ended. After the body the other one is cancelled, and has
    ended.
    """
    tasks = asyncio.create_task(one), asyncio.create_task(other)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        await ended(tasks)


async def ended(tasks: Collection[asyncio.Task[Any]], *, again_s: float = 2.0) -> None:
    """Cancel tasks, and return once all have ended.

    again_s: a cancellation is repeated after so long, because one that arrives together with the answer that
    a task waits for is lost (`asyncio.wait_for`, Python 3.11), and a loop would go on.
    """
    running = set(tasks)
    for task in running:
        if not task.cancelling():
            task.cancel()
    while running:
        _, running = await asyncio.wait(running, timeout=again_s)
        for task in running:
            task.cancel()


async def pause(stop: asyncio.Event, seconds: float, wake: asyncio.Event | None = None) -> bool:
    """Wait for so long, or until `stop` or `wake` is set. True: go on, False: `stop` is set.

    `wake` is cleared, so that the caller looks once for each time it was set.
    """
    async with AsyncExitStack() as waits:
        waiting = [asyncio.ensure_future(event.wait()) for event in (stop, wake) if event is not None]
        for task in waiting:
            waits.callback(task.cancel)
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if wake is not None:
        wake.clear()
    return not stop.is_set()


async def until_stopped(
    stop: asyncio.Event,
    work: Callable[[], Awaitable[None]],
    *,
    every_s: float,
    wake: asyncio.Event | None = None,
    waiting: str = "loop_waits",
) -> None:
    """Call `work` at once, then after every `every_s` seconds or whenever `wake` is set, until `stop` is
    set.

    Unavailable, from work that found a peer or a store unavailable, is logged as `waiting` when its text
    changes, and work is called again after the error's own delay, at the latest after `every_s`. Work that
    raises it for a minute is an alarm of /readyz, where a Worker runs the loop. Other errors end the loop.
    """
    last, failing = "", failing_work()
    while not stop.is_set():
        delay_s = every_s
        try:
            with failing.round():
                await work()
            last = ""
        except Unavailable as error:
            delay_s = min(every_s, error.retry_after_s or every_s)
            if str(error) != last:
                log.warning(waiting, extra={"waiting_for": str(error)})
            last = str(error)
        await pause(stop, delay_s, wake)
