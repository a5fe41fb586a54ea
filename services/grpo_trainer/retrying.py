"""Repeats calls to a service or store that is unavailable, and names it meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from upcycle.retrying import retry

T = TypeVar("T")


class RetryUntilAvailable:
    """`waiting_for` names what the calls through this object wait for; None while none of them waits."""

    def __init__(self, *, budget_s: float = 900.0, first_pause_s: float = 0.2) -> None:
        """budget_s: after so long the last Unavailable is raised, and the process may be restarted."""
        self._budget_s = budget_s
        self._first_pause_s = first_pause_s
        self.waiting_for: str | None = None

    async def until_available(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of the first call that does not raise Unavailable."""
        return await retry(
            call, budget_s=self._budget_s, first_pause_s=self._first_pause_s, on_wait=self._wait_for
        )

    def _wait_for(self, what: str | None) -> None:
        self.waiting_for = what
