"""Claims of tasks as training data: the planner records them, this process asks once for each task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from grpo_trainer.interactive.deps import TaskClaims

HOLD_AGAIN_S: Final = 3600.0


class RememberedClaims:
    """Asks for each task once, for each run once an hour. The planner never takes a claim back, so a training
    loop over the same tasks asks only in its first step; a run it keeps for a day after each claim."""

    def __init__(self, planner: TaskClaims, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._planner = planner
        self._claimed: set[str] = set()
        self._held: dict[str, float] = {}
        self._clock = clock

    async def claim(
        self, digests: Sequence[str], claimed_by: str, source_run_ids: Sequence[str] = ()
    ) -> None:
        """Claim the tasks that this process has not claimed before; see PlannerClaims.claim."""
        now = self._clock()
        self._held = {run_id: at for run_id, at in self._held.items() if now - at < HOLD_AGAIN_S}
        unknown = [digest for digest in digests if digest not in self._claimed]
        runs = [run_id for run_id in source_run_ids if run_id not in self._held]
        if unknown or runs:
            await self._planner.claim(unknown, claimed_by, runs)
            self._claimed.update(unknown)
            self._held.update(dict.fromkeys(runs, now))
