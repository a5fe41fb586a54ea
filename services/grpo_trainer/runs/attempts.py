"""Counts how often a batch was started, so that a batch that kills the process every time fails its run.

A record of the batch is stored before it is computed, and marked as done afterwards. A process that is killed
in between leaves the record open; a process that is stopped on notice takes its start back. One that lost the
run to another trainer leaves it open, too: where it takes the run again, its own starts do not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from grpo_trainer.domain.errors import Diverged, KilledInBatch, RanksGone
from grpo_trainer.domain.failures import WAYS_OUT
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import CompleteGroup
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.attempt_record import MAX_KILLED, Attempt, next_attempt
from grpo_trainer.runs.deps import RunDeps

log = logging.getLogger(__name__)


class BatchAttempts:
    """The starts of one run's batches."""

    def __init__(self, spec: TrainingSpec, deps: RunDeps, retry: RetryUntilAvailable) -> None:
        self._spec = spec
        self._deps = deps
        self._retry = retry
        self._known = False
        self._newest: Attempt | None = None
        self._computing = False
        self._leaving = False
        self._noting: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def at(self, step: int, groups: Sequence[CompleteGroup]) -> AsyncIterator[None]:
        """Inside, the batch of that step is computed, and no other batch of this process. Raises
        KilledInBatch if it was started too often.

        The start is stored when no other batch computes: otherwise a kill would count against a batch that
        waited. The other reads and writes happen outside the lock, so that the next session can compute.
        """
        await self._look_up()
        try:
            async with self._deps.computing:
                await self._begin(step, groups)
                self._computing = True
                try:
                    yield
                finally:
                    self._computing = False
        except Diverged:
            await self._done()
            raise
        except RanksGone:  # another session's batch broke the process
            await self._take_back()
            raise
        await self._done()

    def leave(self) -> None:
        """The process was asked to stop: the start of the batch that it computes now does not count."""
        self._leaving = True
        if self._computing:
            self._noting = asyncio.create_task(self._take_back(), name=f"leaving/{self._spec.run_id}")

    async def close(self) -> None:
        """Wait until the record is stored."""
        if self._noting is not None:
            await asyncio.wait({self._noting})

    async def _look_up(self) -> None:
        if not self._known:
            states, model, run_id = self._deps.states, self._spec.model, self._spec.run_id
            self._newest = await self._retry.until_available(lambda: states.attempt(model, run_id))
            self._known = True

    async def _begin(self, step: int, groups: Sequence[CompleteGroup]) -> None:
        run_id = self._spec.run_id
        attempt = next_attempt(self._newest, step, [group.group_id for group in groups])
        key = (run_id, step, attempt.batch)
        attempt = attempt.left(min(self._deps.begun[key], attempt.starts - 1))
        if attempt.starts > MAX_KILLED:
            raise KilledInBatch(
                f"the process ended {MAX_KILLED} times while it computed the batch of step {step} "
                f"({len(groups)} groups), without notice or because GRPO_TRAINER_STEP_DEADLINE_S was over: "
                f"such a batch is taken as one that does not fit in memory: {WAYS_OUT}"
            )
        if attempt.starts > 1:
            log.warning("batch_begun_again", extra={"run_id": run_id, "step": step, "starts": attempt.starts})
        self._deps.begun[key] = 1
        await self._note(attempt)
        if self._leaving:
            await self._take_back()

    async def _take_back(self) -> None:
        if self._newest is not None and not self._newest.done:
            await self._note(self._newest.left())

    async def _done(self) -> None:
        await self.close()
        if (newest := self._newest) is not None:
            await self._note(replace(newest, done=True))
            self._deps.begun.pop((self._spec.run_id, newest.step, newest.batch), None)

    async def _note(self, attempt: Attempt) -> None:
        self._newest = attempt
        states, model, run_id = self._deps.states, self._spec.model, self._spec.run_id
        holding = self._deps.holding
        await holding.while_held(model, self._retry, lambda _: states.note_attempt(model, run_id, attempt))
