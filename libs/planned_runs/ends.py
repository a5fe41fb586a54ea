"""Finds the runs that the planner ended and whose `run.finished` does not arrive: the stream may have lost
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from planned_runs.planner import PlannedRuns
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.errors import Unavailable
from upcycle.run_client import is_over

LOOK_S: Final = 30.0
"""Between two looks: by the second, a `run.finished` that was not lost has arrived."""


_AT_ONCE: Final = 8
"""Questions. One run whose answer takes long holds up no other."""


class EndsSeenTwice:
    """Names a run at the second look in a row at which it is over. A run that the planner does not know is
    not over. unanswered: runs of the newest look about which the planner said nothing, and why."""

    def __init__(self, planner: PlannedRuns) -> None:
        self._planner = planner
        self._over: Mapping[str, taskset_pb2.Run] = {}
        self.unanswered: Mapping[str, Unavailable] = {}

    async def look(self, run_ids: Iterable[str]) -> list[taskset_pb2.Run]:
        """Ask about each of these runs, once; returns those that the look before found over as well. For a
        run that is unanswered the look does not count."""
        asked = list(run_ids)
        places = asyncio.Semaphore(_AT_ONCE)
        answers = await asyncio.gather(*(self._ask(run_id, places) for run_id in asked))
        over, unanswered = {}, {}
        for run_id, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Unavailable):
                unanswered[run_id] = answer
            elif answer is not None and is_over(answer):
                over[run_id] = answer
        found = [over[run_id] for run_id in sorted(over.keys() & self._over.keys())]
        self._over = over | {run_id: self._over[run_id] for run_id in unanswered if run_id in self._over}
        self.unanswered = unanswered
        return found

    def check_answered(self) -> None:
        """Raises Unavailable if the newest look has unanswered runs."""
        for error in self.unanswered.values():
            number = len(self.unanswered)
            others = f"; {number - 1} other runs are unanswered too" if number > 1 else ""
            raise Unavailable(f"{error}{others}") from error

    async def _ask(self, run_id: str, places: asyncio.Semaphore) -> taskset_pb2.Run | Unavailable | None:
        async with places:
            try:
                return await self._planner.run(run_id)
            except Unavailable as error:
                return error
