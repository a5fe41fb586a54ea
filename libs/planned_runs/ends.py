"""Finds the runs that the planner ended and whose `run.finished` does not arrive: the stream may have lost
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from planned_runs.planner import PlannedRuns
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.run_client import is_over

LOOK_S: Final = 30.0
"""Between two looks: by the second, a `run.finished` that was not lost has arrived."""


class EndsSeenTwice:
    """Names a run at the second look in a row at which it is over. A run that the planner does not know is
    not over."""

    def __init__(self, planner: PlannedRuns) -> None:
        self._planner = planner
        self._over: Mapping[str, taskset_pb2.Run] = {}

    async def look(self, run_ids: Iterable[str]) -> list[taskset_pb2.Run]:
        """Ask about each of these runs, once; returns those that the look before found over as well. Raises
        Unavailable, and then the look does not count."""
        over = {}
        for run_id in run_ids:
            run = await self._planner.run(run_id)
            if run is not None and is_over(run):
                over[run_id] = run
        found = [over[run_id] for run_id in sorted(over.keys() & self._over.keys())]
        self._over = over
        return found
