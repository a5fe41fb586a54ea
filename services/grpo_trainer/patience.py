"""Unavailable for what is away: again and again, with a name, and not for ever."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from upcycle.errors import Unavailable

T = TypeVar("T")

log = logging.getLogger(__name__)


class Patience:
    """Repeats a call while it raises Unavailable. `waiting_for`: None when nothing is awaited."""

    def __init__(
        self, *, budget_s: float = 900.0, first_pause_s: float = 0.2, max_pause_s: float = 5.0
    ) -> None:
        """budget_s: after so long the last Unavailable is raised, and the process may be restarted."""
        self._budget_s = budget_s
        self._first_pause_s = first_pause_s
        self._max_pause_s = max_pause_s
        self.waiting_for: str | None = None

    async def until_done(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of the first call that is not answered by Unavailable."""
        began, pause_s = time.monotonic(), self._first_pause_s
        while True:
            try:
                result = await call()
                self.waiting_for = None
                return result
            except Unavailable as error:
                if time.monotonic() - began > self._budget_s:
                    raise
                if self.waiting_for is None:
                    log.warning("waiting", extra={"waiting_for": str(error)})
                self.waiting_for = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._max_pause_s)
            except BaseException:
                self.waiting_for = None  # it was answered, or is given up
                raise
