"""Claims of tasks as training data, each asked for once per process."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_trainer.interactive.deps import TaskClaims


class RememberedClaims:
    """See deps.TaskClaims. A claim is never taken back, so a training loop asks for new tasks only."""

    def __init__(self, planner: TaskClaims) -> None:
        self._planner = planner
        self._claimed: set[str] = set()

    async def claim(self, digests: Sequence[str], claimed_by: str) -> None:
        """See deps.TaskClaims."""
        unknown = [digest for digest in digests if digest not in self._claimed]
        if unknown:
            await self._planner.claim(unknown, claimed_by)
            self._claimed.update(unknown)
