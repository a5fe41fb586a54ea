"""Calls that are repeated while a peer is unavailable."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from upcycle.errors import Unavailable

T = TypeVar("T")

log = logging.getLogger(__name__)


async def retry(
    call: Callable[[], Awaitable[T]],
    *,
    budget_s: float,
    first_pause_s: float = 0.2,
    max_pause_s: float = 5.0,
    on_wait: Callable[[str | None], None] = lambda _: None,
) -> T:
    """The result of the first `call` that does not raise Unavailable.

    Pauses double from `first_pause_s` to `max_pause_s`; an error that names its own delay is obeyed. Once
    the next pause would end after `budget_s` seconds, the last Unavailable is raised. on_wait: gets what is
    awaited after each failure, and None once nothing is. `on_wait(None)` is not called when the last
    Unavailable is raised: the caller still waits for it.
    """
    loop = asyncio.get_running_loop()
    give_up_at, pause_s = loop.time() + budget_s, first_pause_s
    is_waiting = False
    try:
        while True:
            try:
                return await call()
            except Unavailable as error:
                delay_s = pause_s if error.retry_after_s is None else error.retry_after_s
                if loop.time() + delay_s > give_up_at:
                    is_waiting = False
                    raise
                if not is_waiting:
                    log.info("waiting", extra={"waiting_for": str(error)})
                is_waiting = True
                on_wait(str(error))
            await asyncio.sleep(delay_s)
            pause_s = min(2 * pause_s, max_pause_s)
    finally:
        if is_waiting:
            on_wait(None)
