"""Stores states and announces them, one at a time, while the next step is computed.

Consumes: a state and the host copy of its tensors. Produces: the durable state, then its announcements,
then deletes old states. Waits for: object store and bus. At most one state is in flight,
so memory is bounded by one host copy; the next one waits for it. No event is published about a
step that the planner did not wait for (Superseded).
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from grpo_trainer.domain.states import SessionState
from grpo_trainer.learner.protocol import Snapshot
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.announcing import announce, confirm
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.group_buffer import GroupBuffer

log = logging.getLogger(__name__)

Durable = Callable[[SessionState], Awaitable[None]]
"""Called with each state when its marker is written, before any event about it is published."""


class Persistence:
    """Stores and announces the states of one session."""

    def __init__(
        self, deps: RunDeps, retry: RetryUntilAvailable, *, durable: Durable, buffer: GroupBuffer
    ) -> None:
        """buffer: told what was announced, and woken when a state was stored and announced, or failed."""
        self._deps = deps
        self._retry = retry
        self._durable = durable
        self._buffer = buffer
        self._task: asyncio.Task[None] | None = None
        self._is_durable = False
        self._num_groups = 0

    @property
    def num_groups(self) -> int:
        """Groups that the step in flight trained: they are settled once it is announced."""
        return self._num_groups if self.in_flight else 0

    @property
    def in_flight(self) -> bool:
        """Whether a state is being stored or announced."""
        return self._task is not None and not self._task.done()

    def begin(self, state: SessionState, snapshot: Snapshot) -> None:
        """Begin to store and announce a state; the one before must have landed."""
        if self._task is not None:
            raise RuntimeError(f"a state before step {state.step} of {state.spec.run_id} is still in flight")
        self._is_durable = False
        self._num_groups = 0 if state.last_step is None else len(state.last_step.settlements)
        work = self._persist(state, snapshot)
        self._task = asyncio.create_task(work, name=f"persist/{state.spec.run_id}/{state.step}")
        self._task.add_done_callback(lambda _: self._buffer.changed.set())

    def check(self) -> None:
        """Raise the error of the state in flight, if it has failed."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def landed(self) -> None:
        """Wait until everything begun is durable and announced; raises what went wrong with it."""
        task = self._task
        if task is not None:
            await asyncio.wait({task})
            task.result()
            self._task = None

    async def wind_up(self, *, within_s: float) -> None:
        """The session failed: announce the state in flight if it becomes durable in time, else abandon it."""
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=within_s)
        if self._is_durable:
            await asyncio.wait({self._task})
        if self._task.done() and not self._task.cancelled() and (error := self._task.exception()) is not None:
            log.info("state_not_announced", extra={"error": str(error)})

    async def close(self) -> None:
        """Abandon the state in flight, as a crash would."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _persist(self, state: SessionState, snapshot: Snapshot) -> None:
        began, deps = time.monotonic(), self._deps
        with tempfile.TemporaryDirectory(dir=deps.work_dir) as folder:
            path = Path(folder) / "state"
            await self._retry.until_available(lambda: snapshot.save(path))
            durable = await self._retry.until_available(lambda: deps.states.commit(state, path))
        self._is_durable = True
        durable_s = time.monotonic() - began
        await confirm(durable, deps, self._retry)
        await self._durable(durable)
        await announce(durable, deps, snapshot, self._retry)
        self._buffer.note_announced(durable.last_step)
        self._num_groups = 0
        if durable.last_step is not None:
            deps.instruments.count_step(state.spec, durable.last_step)
        timings = {"durable_s": round(durable_s, 3), "announced_s": round(time.monotonic() - began, 3)}
        log.info("state_durable", extra={"run_id": state.spec.run_id, "step": state.step, **timings})
        spec, newest = state.spec, deps.keep_states
        model, prune = spec.model, deps.states.prune
        await deps.holding.while_held(model, self._retry, lambda _: prune(spec.run_id, model, newest=newest))
