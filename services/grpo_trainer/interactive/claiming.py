"""Claims of tasks as training data: the planner records them, this process asks once for each task."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_trainer.interactive.deps import TaskClaims


class RememberedClaims:
    """Asks for each task once. The planner never takes a claim back, so a training loop over the same tasks
    asks only in its first step."""

    def __init__(self, planner: TaskClaims) -> None:
        self._planner = planner
        self._claimed: set[str] = set()

    async def claim(self, digests: Sequence[str], claimed_by: str) -> None:
        """Claim the tasks that this process has not claimed before; see PlannerClaims.claim."""
        unknown = [digest for digest in digests if digest not in self._claimed]
        if unknown:
            await self._planner.claim(unknown, claimed_by)
            self._claimed.update(unknown)
