"""Sweeps at an interval, batch after batch, as the settings say."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from retention.sweeps import RetentionSweep, SweepOrder
from service_kit.loops import one_piece, pause, until_stopped

log = logging.getLogger(__name__)


MAX_KEPT: Final = 100_000
"""Old things that stay, and that one turn looks at: what is kept for ever only grows."""


class SweepLoop:
    """What a sweep cannot do now it does at the next turn: old things do no harm. A turn that found MAX_KEPT
    things that stay ends there; the next one goes on behind them. After the last it begins with the oldest
    again."""

    def __init__(self, sweeps: Mapping[str, RetentionSweep], *, every_s: float) -> None:
        """sweeps: by what they remove, in the order in which they run."""
        self._sweeps = sweeps
        self._every_s = every_s
        self._after: dict[str, str] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped; the first sweep comes after the first interval."""

        async def sweep() -> None:
            for what in self._sweeps:
                await self._all_batches(what, stop)

        if await pause(stop, self._every_s):
            await until_stopped(stop, sweep, every_s=self._every_s, waiting="retention_waits")

    async def _all_batches(self, what: str, stop: asyncio.Event) -> None:
        number, size_bytes, kept = 0, 0, 0
        while not stop.is_set():
            with one_piece(f"retention of {what}"):
                report = await self._sweeps[what](SweepOrder(apply=True, after=self._after.get(what, "")))
            self._after[what] = report.next
            number, size_bytes = number + report.number, size_bytes + report.size_bytes
            kept += sum(report.kept.values())
            if not report.next or kept >= MAX_KEPT:
                break
        if number:
            extra = {"what": what, "number": number, "size_bytes": size_bytes}
            log.info("retention_removed", extra=extra)
