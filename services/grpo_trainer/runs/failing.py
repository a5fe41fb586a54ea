"""Runs that failed: durable first, so that no restart resumes them, then said on the bus, and closed when the
planner has ended them.

A run that failed before its first durable state holds the replay at its submission until its failure is
durable; after that the record alone is enough to say it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from grpo_trainer.domain.errors import Unpublishable
from grpo_trainer.domain.failures import FailedRun, Failure
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.watermark import ReplayWatermark
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

Spawn = Callable[[str, Coroutine[Any, Any, None]], None]
"""Runs something beside everything else, under a name; what it dies of ends the process."""


class Failures:
    """The failed runs that this trainer knows."""

    def __init__(self, deps: RunDeps, watermark: ReplayWatermark, spawn: Spawn) -> None:
        self._deps = deps
        self._watermark = watermark
        self._spawn = spawn
        self._runs: dict[str, FailedRun] = {}
        self._said: set[str] = set()
        self._unpublishable: set[str] = set()
        self._over: set[str] = set()

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._runs

    @property
    def all(self) -> Sequence[FailedRun]:
        """In the order in which they became known."""
        return list(self._runs.values())

    def add(self, run: FailedRun) -> None:
        """From now on the run counts as failed."""
        self._runs[run.failure.run_id] = run

    def over(self, run_id: str) -> None:
        """The planner says that the run is over; a repeat changes nothing."""
        if run_id in self._over or self._runs[run_id].closed:
            return
        self._over.add(run_id)
        if run_id in self._said | self._unpublishable:
            self._spawn(f"closing/{run_id}", self._close(run_id))

    async def remember(self, run_id: str) -> Failure:
        """Make the failure durable. Returns the one that is: the run's first."""
        run = self._runs[run_id]
        kept = run.failure
        if kept.model:  # without a model there is no folder and no subject, and no planner submits such a run
            kept = await RetryUntilAvailable().until_available(lambda: self._deps.states.fail(run.failure))
        self._runs[run_id] = replace(self._runs[run_id], failure=kept)
        self._watermark.opened(run_id)
        return kept

    async def say(self, run_id: str) -> None:
        """Publish the failure, as often as it takes, unless the run is over. Raises Unavailable."""
        failure = self._runs[run_id].failure
        try:
            if failure.model and not (run_id in self._over or self._runs[run_id].closed):
                await self._publish(failure)
            self._said.add(run_id)
        except Unpublishable:
            log.exception("failure_not_published", extra={"run_id": run_id})
            self._unpublishable.add(run_id)
        if run_id in self._over:
            await self._close(run_id)

    async def _publish(self, failure: Failure) -> None:
        """Return when the bus has stored the failure; after an unexpected error it is tried again too."""

        async def attempt() -> None:
            try:
                await self._deps.facts.failed(failure)
            except (Unpublishable, Unavailable):
                raise
            except Exception as error:
                log.exception("failure_publish_error", extra={"run_id": failure.run_id})
                raise Unavailable(f"the bus (the failure of {failure.run_id}): {error!r}") from error

        await RetryUntilAvailable().until_available(attempt)
        log.info("failure_published", extra={"run_id": failure.run_id, "kind": failure.kind.value})

    async def record_and_publish(self, run_id: str) -> None:
        """Both, for a run that has no session."""
        await self.remember(run_id)
        await self.say(run_id)

    async def _close(self, run_id: str) -> None:
        """Its states may go, and no restart looks at it again."""
        run = self._runs[run_id]
        if run.failure.model:
            await RetryUntilAvailable().until_available(lambda: self._deps.states.close_failed(run.failure))
        self._runs[run_id] = replace(run, closed=True)
        log.info("failed_run_closed", extra={"run_id": run_id})
