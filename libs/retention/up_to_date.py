"""A service that lags does not know all that refers to a run: it answers nothing, and removes nothing."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from retention.servicer import Find
from retention.sweeps import Reference, RetentionSweep, SweepOrder, SweepReport
from upcycle.errors import Unavailable

MAX_LAG: Final = timedelta(hours=1)
"""Of a service's readers. Far less than the day for which nothing is removed."""


class UpToDate:
    """Guards what a service says and removes by what it has read."""

    def __init__(
        self,
        service: str,
        unread: Callable[[datetime], Awaitable[str | None]],
        *,
        now: Callable[[], datetime],
    ) -> None:
        """unread: why facts from before a moment may be unread; None: they are read. Raises Unavailable."""
        self._service = service
        self._unread = unread
        self._now = now

    async def check(self) -> None:
        """Raises Unavailable for a service that has not read what is older than MAX_LAG."""
        why = await self._unread(self._now() - MAX_LAG)
        if why is not None:
            raise Unavailable(
                f"nothing is removed: {self._service} has not read all events older than {MAX_LAG} ({why})"
            )

    def finding(self, find: Find) -> Find:
        """References, once all is read."""

        async def found(runs: Mapping[str, str], release: bool) -> Sequence[Reference]:
            await self.check()
            return await find(runs, release)

        return found

    def sweeping(self, sweeps: Mapping[str, RetentionSweep]) -> dict[str, RetentionSweep]:
        """The same sweeps, once all is read."""

        def guarded(sweep: RetentionSweep) -> RetentionSweep:
            async def swept(order: SweepOrder) -> SweepReport:
                await self.check()
                return await sweep(order)

            return swept

        return {what: guarded(sweep) for what, sweep in sweeps.items()}
