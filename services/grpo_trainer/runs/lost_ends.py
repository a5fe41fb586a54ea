"""Ends the runs that the planner ended and whose `run.finished` does not arrive: the stream may have lost it
while no trainer ran. Without it a run keeps its model, and the next run of the model waits for ever.
"""

from __future__ import annotations

import asyncio
import logging

from grpo_trainer.runs.sessions import RunSessions
from planned_runs import LOOK_S, EndsSeenTwice, PlannedRuns
from service_kit.loops import until_stopped
from upcycle.run_client import completed

log = logging.getLogger(__name__)


class LostEnds:
    """A run ends here at the second look in a row at which the planner has it as over."""

    def __init__(self, sessions: RunSessions, planner: PlannedRuns, *, look_s: float = LOOK_S) -> None:
        self._sessions = sessions
        self._ends = EndsSeenTwice(planner)
        self._look_s = look_s

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped. While the planner is unavailable, the loop waits for it."""
        await until_stopped(stop, self.look, every_s=self._look_s, waiting="planner_not_asked_about_runs")

    async def look(self) -> None:
        """Ask about every run that is not over here. Raises Unavailable once the answers are followed."""
        asked = self._sessions.not_over
        for run in await self._ends.look(asked):
            log.warning("run_ended_by_planner", extra={"run_id": run.run_id})
            self._sessions.end(run.run_id, self._sessions.watermark.handled, saves=completed(run))
        self._sessions.lost.asked(set(asked) - self._ends.unanswered.keys())
        self._ends.check_answered()
