"""Failed runs: the failure is stored, so that no restart resumes the run; then session.failed is published;
and the run is closed when the planner has published run.finished.

A run that failed without a durable state holds every cursor before its submission until its failure is
stored, so that a restart replays the submission. After that, failed.json is enough to publish the event
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from grpo_trainer.domain.errors import Unpublishable
from grpo_trainer.domain.failures import FailedRun, Failure
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.watermark import ReplayWatermark
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_MAX_CLOSED: Final = 64
"""Failed runs that are closed and kept to be shown."""

Spawn = Callable[[str, Coroutine[Any, Any, None]], None]
"""Starts a task in the background, under a name; an error of the task ends the process."""


class Failures:
    """The failed runs that this trainer knows."""

    def __init__(self, deps: RunDeps, watermark: ReplayWatermark, spawn: Spawn) -> None:
        self._deps = deps
        self._watermark = watermark
        self._spawn = spawn
        self._runs: dict[str, FailedRun] = {}
        self._published: set[str] = set()
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
        """The planner published run.finished for the run; safe to repeat."""
        if run_id in self._over or self._runs[run_id].closed:
            return
        self._over.add(run_id)
        if run_id in self._published | self._unpublishable:
            self._spawn(f"closing/{run_id}", self._close(run_id))

    async def remember(self, run_id: str) -> Failure:
        """Store the failure. Returns the stored one: the first failure of the run."""
        run = self._runs[run_id]
        kept = run.failure
        if kept.model:  # without a model there is no folder and no subject, and no planner submits such a run
            kept = await RetryUntilAvailable().until_available(
                lambda: self._deps.states.record_failure(run.failure)
            )
        self._runs[run_id] = replace(self._runs[run_id], failure=kept)
        self._watermark.opened(run_id)
        return kept

    async def publish(self, run_id: str) -> None:
        """Publish session.failed, unless the run is over. Raises Unavailable after many tries."""
        failure = self._runs[run_id].failure
        try:
            if failure.model and not (run_id in self._over or self._runs[run_id].closed):
                await self._until_stored(failure)
            self._published.add(run_id)
        except Unpublishable:
            log.exception("failure_not_published", extra={"run_id": run_id})
            self._unpublishable.add(run_id)
        if run_id in self._over:
            await self._close(run_id)

    async def _until_stored(self, failure: Failure) -> None:
        """Publish until the bus has stored the event; also after unexpected errors."""

        async def attempt() -> None:
            try:
                await self._deps.facts.publish_failure(failure)
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
        await self.publish(run_id)

    async def _close(self, run_id: str) -> None:
        """Mark the run as closed: its old states are deleted, and no restart publishes its failure again."""
        run = self._runs[run_id]
        if run.failure.model:
            await RetryUntilAvailable().until_available(
                lambda: self._deps.states.record_failed_end(run.failure)
            )
        self._runs[run_id] = replace(run, closed=True)
        self._watermark.closed(run_id)
        for old in [known for known, one in self._runs.items() if one.closed][:-_MAX_CLOSED]:
            del self._runs[old]
        log.info("failed_run_closed", extra={"run_id": run_id})
