"""Ends the runs that the planner ended and whose `run.finished` does not arrive: the stream may have lost it
while no trainer ran. Without it a run keeps its model, and the next run of the model waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from grpo_trainer.runs.sessions import RunSessions
from service_kit.loops import until_stopped

log = logging.getLogger(__name__)

_LOOK_S: Final = 30.0


class Planner(Protocol):
    """The part of PlannedRuns that is used here."""

    async def is_over(self, run_id: str) -> bool:
        """Whether the planner ended the run. Raises Unavailable."""

    async def is_completed(self, run_id: str) -> bool:
        """Whether the run ended as completed. Raises Unavailable."""


class LostEnds:
    """A run ends here at the second look in a row at which the planner has it as over: by then a
    `run.finished` that was not lost has arrived."""

    def __init__(self, sessions: RunSessions, planner: Planner, *, look_s: float = _LOOK_S) -> None:
        self._sessions = sessions
        self._planner = planner
        self._look_s = look_s
        self._over: frozenset[str] = frozenset()

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. While the planner is unavailable, the loop waits for it."""
        await until_stopped(stop, self.look, every_s=self._look_s, waiting="ends_of_runs_not_asked")

    async def look(self) -> None:
        """Ask about every run that is not over here. Raises Unavailable."""
        over = frozenset([run for run in self._sessions.not_over if await self._planner.is_over(run)])
        for run_id in sorted(over & self._over):
            log.warning("run_ended_by_planner", extra={"run_id": run_id})
            saves = await self._planner.is_completed(run_id)
            self._sessions.end(run_id, self._sessions.watermark.handled, saves=saves)
        self._over = over
        self._sessions.lost.asked()
