"""How a session ends its run before the last step: which version is the run's last one, and becomes a
checkpoint where the run completes.

`stopped.json` is stored first, so a restart publishes the same events again and takes no step.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from episodes import GroupReason
from grpo_trainer.domain.errors import Superseded
from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.trajectories import excluded
from grpo_trainer.learner.protocol import Snapshot
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.announcing import announce_final, announce_final_stored, confirm
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.group_buffer import GroupBuffer

log = logging.getLogger(__name__)


class EarlyEnd:
    """Ends one run. buffer.saves says whether the last version becomes a checkpoint."""

    def __init__(self, deps: RunDeps, buffer: GroupBuffer, retry: RetryUntilAvailable) -> None:
        self._deps = deps
        self._buffer = buffer
        self._retry = retry

    async def with_newest(
        self, state: SessionState, snapshot: Callable[[], Awaitable[Snapshot]]
    ) -> SessionState:
        """The newest version is the last one: publish checkpoint.saved for it, and group.settled for every
        group in the buffer. Returns the state, stopped."""
        stopped = state if state.stopped else await self._stopped(state)
        if self._buffer.saves:
            await announce_final(stopped, self._deps, await snapshot(), self._retry)
        for group in self._buffer.held():
            await self._buffer.settle(excluded(group, GroupReason.RUN_OVER))
        log.info("run_ended_early", extra={"run_id": state.spec.run_id, "step": state.step})
        return stopped

    async def before_void_step(self, model: str, run_id: str) -> None:
        """The newest step is void: the version before it is the last one. The learner has the weights of the
        void step, so the version is read from the store, where it was published from."""
        if not self._buffer.saves:
            return
        states = self._deps.states
        newest, before = await self._retry.until_available(lambda: states.newest_two(model, run_id))
        if newest is None or before is None or not await self._is_void(newest):
            return
        await announce_final_stored(await self._stopped(before), self._deps, self._retry)
        log.info("run_ended_early", extra={"run_id": run_id, "step": before.step})

    async def _is_void(self, state: SessionState) -> bool:
        try:
            await confirm(state, self._deps, self._retry)
        except Superseded:
            return True
        return False

    async def _stopped(self, state: SessionState) -> SessionState:
        stopped, states = replace(state, stopped=True), self._deps.states
        model = state.spec.model
        await self._deps.holding.while_held(
            model, self._retry, lambda held: states.record_stop(stopped, held)
        )
        return stopped
