"""The session of one run: waits for a batch, takes a step, stores the state, then publishes the step's
events.

The next step may be computed while the state of the step before is being stored. No event about a step is
published before its state is durable.

Guarantees: the weights of a state hold the gradients of exactly the groups that the state counts as
trained; all events of a step can be published again from its state, with equal content; a fact is replayed
until the state that holds its gradient is durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from episodes import GroupReason
from grpo_trainer.domain.errors import Diverged, Superseded, UnusableTrajectory
from grpo_trainer.domain.failures import ENDS_PROCESS, Failure
from grpo_trainer.domain.model_leases import RunLease
from grpo_trainer.domain.offers import unusable
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.states import SessionPhase, SessionState
from grpo_trainer.domain.steps import StepPlan, StepRecord
from grpo_trainer.domain.token_rows import row_counts
from grpo_trainer.domain.trajectories import CompleteGroup, Settlement, Submission, excluded
from grpo_trainer.holding import HeldModel
from grpo_trainer.learner.protocol import BatchGroup, Canary
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.announcing import announce, confirm
from grpo_trainer.runs.attempts import BatchAttempts
from grpo_trainer.runs.crediting import paid
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.early_end import EarlyEnd
from grpo_trainer.runs.group_buffer import Fact, GroupBuffer
from grpo_trainer.runs.opening import first_state, load_state
from grpo_trainer.runs.persisting import Persistence
from grpo_trainer.runs.watermark import ReplayWatermark
from identities.entities import checkpoint_id

log = logging.getLogger(__name__)

_MAX_DIVERGED: Final = 3
"""Batches in a row whose loss is not finite before the session gives up."""
_LANDING_S: Final = 1.0
"""How long a session that failed waits for the state in flight to become durable."""
_MAX_HISTORY: Final = 512
"""Steps whose metrics can be asked for."""
_QUALITY: Final = ("loss", "reward_mean", "success_rate", "mismatch_kl", "grad_norm")
_LOGGED: Final = (*_QUALITY, "learner_s", "stall_s", "idle_s")


@dataclass(frozen=True, slots=True)
class _Batch:
    groups: tuple[CompleteGroup, ...]
    contents: tuple[BatchGroup, ...]
    idle_s: float


class TrainingSession:
    """The trainer's side of one run."""

    def __init__(
        self,
        submission: Submission,
        deps: RunDeps,
        watermark: ReplayWatermark,
        state: SessionState | None = None,
        *,
        lease: RunLease,
    ) -> None:
        """state: the newest durable one; None for a run that was just submitted. lease: checked
        before the first version, released when the run is finished or failed."""
        self.spec = submission.spec
        self.state = state
        self.phase = SessionPhase.OPENING
        self.failed: Failure | None = None
        self.lost_in_a_row = 0
        self.took_steps = False
        self.put_up_to = 0
        self.changed = asyncio.Condition()
        self.history: deque[StepRecord] = deque(maxlen=_MAX_HISTORY)
        if state is not None and state.last_step is not None:
            self.history.append(state.last_step)
        self.submission = submission
        self._deps = deps
        self._watermark = watermark
        self._retry = RetryUntilAvailable()
        self._lease = lease
        self._learner = deps.new_learner()
        run_id = self.spec.run_id
        settled = SettledGroups.from_json(run_id, state.settled) if state else SettledGroups(run_id)
        counts = {} if state is None else dict(state.settled_counts)
        self.buffer = GroupBuffer(self.spec, settled, counts, deps)
        self._persistence = Persistence(deps, self._retry, durable=self._became_durable, buffer=self.buffer)
        self._early_end = EarlyEnd(deps, self.buffer, self._retry)
        self._attempts = BatchAttempts(self.spec, deps, self._retry)
        self._leaving = False
        self._superseded = False
        self._diverged = 0
        self._waiting_since = time.monotonic()

    def put(self, fact: Fact) -> None:
        """A fact about this run, in stream order; one that was put before is ignored."""
        if fact.sequence > self.put_up_to:
            self.put_up_to = fact.sequence
            self.buffer.put(fact)

    def stop(self) -> None:
        """Finish the step under way, then return from `run`."""
        self._leaving = True
        self._attempts.leave()
        self.buffer.changed.set()

    @property
    def failure(self) -> str:
        """Why the run failed, for people; empty where it did not."""
        return "" if self.failed is None else self.failed.detail

    @property
    def waiting_s(self) -> float:
        """Seconds since the last step ended."""
        return time.monotonic() - self._waiting_since

    @property
    def waiting_for(self) -> str | None:
        """The service or store that the session waits for, if there is one."""
        return self._retry.waiting_for or self.buffer.retry.waiting_for

    async def run(self) -> None:
        """Train until the run is over or `stop` is called.

        Raises the error that the run failed with, after the events of every durable state were published.
        """
        buffering: asyncio.Task[None] | None = None
        try:
            await self._begin()
            buffering = asyncio.create_task(self.buffer.run(), name=f"group-buffer/{self.spec.run_id}")
            await self._work_beside(buffering)
        except Exception as error:
            if not isinstance(error, ENDS_PROCESS):
                await self._persistence.wind_up(within_s=_LANDING_S)
            raise
        finally:
            if buffering is not None:
                buffering.cancel()
                await asyncio.wait({buffering})
            self.buffer.close()
            await self._persistence.close()
            await self._attempts.close()

    async def close(self) -> None:
        """Free the memory, after the work that is queued in the learner's thread."""
        await self._learner.close()

    async def fail(self, failure: Failure) -> None:
        """Show the run as failed. The failure is durable, and Failures publishes it."""
        self.failed = failure
        await self._enter(SessionPhase.FAILED)

    async def end(self, state: SessionState) -> None:
        """Another trainer finished the run, with this state."""
        self.state, self.buffer.retired = state, True
        self._watermark.opened(self.spec.run_id)
        await self._enter(SessionPhase.FINISHED)

    async def _begin(self) -> None:
        if self.state is None:
            await self._retry.until_available(self._lease.check)
            self.state = await first_state(self.submission, self._deps, self._learner, self._retry)
        else:
            await load_state(self.state, self._deps, self._learner, self._retry)
        self._watermark.opened(self.spec.run_id)
        self.buffer.begin(self.state)
        log.info("session_begun", extra={"run_id": self.spec.run_id, "step": self.state.step})
        try:
            await confirm(self.state, self._deps, self._retry)
            await announce(self.state, self._deps, await self._learner.snapshot(), self._retry)
            self.buffer.note_announced(self.state.last_step)
        except Superseded as error:
            self._give_up(error)

    async def _work_beside(self, buffering: asyncio.Task[None]) -> None:
        """Train until the run is over. An error of the group buffer ends the training too."""
        work = asyncio.create_task(self._work(), name=f"train/{self.spec.run_id}")
        try:
            await asyncio.wait({buffering, work}, return_when=asyncio.FIRST_COMPLETED)
            if buffering.done():
                buffering.result()
            await work
        finally:
            work.cancel()
            await asyncio.wait({work})

    async def _work(self) -> None:
        """Take all steps of the run, then wait until the planner ends it."""
        try:
            if not self._superseded:
                await self._train()
        except Superseded as error:
            self._give_up(error)
        if not self._leaving:
            await self._finish()

    async def _train(self) -> None:
        trained = self.state
        while trained is not None and not self.spec.reached(trained.step) and not trained.stopped:
            batch = await self._next_batch(trained.version)
            if batch is None:
                break
            trained = await self._one_step(trained, batch)
        await self._landed()

    def _give_up(self, error: Superseded) -> None:
        """The planner ended the run without the newest step: publish nothing, and wait for run.finished."""
        log.warning("step_void", extra={"run_id": self.spec.run_id, "error": str(error)})
        self._superseded = True

    async def _finish(self) -> None:
        state = self.state
        if self._superseded or (state is not None and not self.spec.reached(state.step)):
            await self._end_early()
        self.buffer.retired = True
        await self._enter(SessionPhase.FINISHED)
        await self._until(lambda: self.buffer.over)
        if self.buffer.over and self.state is not None:
            closed = self.state.closed(self._cursor())
            await self._while_held(lambda _: self._deps.states.record_end(closed))
            self.state = closed

    async def _end_early(self) -> None:
        """The run is stopping, or completed before its last step."""
        await self._until(lambda: self.buffer.stopping or self.buffer.over)
        if self.state is None or not (self.buffer.stopping or (self.buffer.over and self.buffer.saves)):
            return
        if self._superseded:
            await self._early_end.before_void_step(self.spec.model, self.spec.run_id)
            return
        await self._enter(SessionPhase.PUBLISHING)
        self.state = await self._early_end.with_newest(self.state, self._learner.snapshot)

    @property
    def groups_publishing(self) -> int:
        """Groups of the step that is being stored and announced: the buffer has them no more."""
        return self._persistence.num_groups

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Until the buffer has read it, or this session is to be left."""
        while not (is_so() or self._leaving):
            self.buffer.changed.clear()
            await self.buffer.changed.wait()

    async def _while_held(self, write: Callable[[HeldModel], Awaitable[object]]) -> None:
        await self._deps.holding.while_held(self.spec.model, self._retry, write)

    async def _enter(self, phase: SessionPhase) -> None:
        self.phase = phase
        if phase in (SessionPhase.FINISHED, SessionPhase.FAILED):
            self._lease.release()
        async with self.changed:
            self.changed.notify_all()

    async def _next_batch(self, version: int) -> _Batch | None:
        """The next groups to train, with their tokens; None when the run or this process is stopping."""
        began = time.monotonic()
        await self._enter(SessionPhase.WAITING)
        while not (self.buffer.over or self.buffer.stopping or self._leaving):
            self.buffer.changed.clear()
            self._persistence.check()
            cut = self.buffer.cutter.cut(version)
            for settlement in (*cut.stale, *cut.tied):
                await self._exclude(settlement)
            contents = await self._contents(cut.groups) if cut.groups else None
            if contents is not None:
                return _Batch(cut.groups, contents, time.monotonic() - began)
            if not cut.groups and not cut.tied:
                await self.buffer.changed.wait()
        return None

    async def _contents(self, groups: Sequence[CompleteGroup]) -> tuple[BatchGroup, ...] | None:
        """The tokens of all groups; None if one had to be quarantined: then the batch is cut again."""
        contents, whole = [], True
        for group in groups:
            try:
                content = await self.buffer.contents(group)
                self._learner.check(content)
                contents.append(content)
            except UnusableTrajectory as error:
                whole = False
                await self._exclude(unusable(group, error))
        return tuple(contents) if whole else None

    async def _exclude(self, settlement: Settlement) -> None:
        """Publish that a group is excluded, after the version in training, which excludes it, is durable."""
        phase = self.phase
        await self._landed()
        await self._enter(phase)
        await self.buffer.settle(settlement)

    async def _landed(self) -> None:
        """Wait until the state in flight, if there is one, is durable and announced."""
        if self._persistence.in_flight:
            await self._enter(SessionPhase.PUBLISHING)
        await self._persistence.landed()

    async def _one_step(self, state: SessionState, batch: _Batch) -> SessionState:
        """Take one step. Returns the state after it; the same state if the batch was not applied."""
        plan = self._plan(state, batch)
        members = [member for group in batch.groups for member in group.members]
        span = self._deps.instruments.step(self.spec, plan.step, state.trace_headers, members)
        await self._enter(SessionPhase.STEPPING)
        with span as traceparent:
            try:
                async with self._attempts.at(plan.step, batch.groups):
                    numbers = await self._learner.step(
                        paid(self.spec, batch.contents, plan.before, plan.step), plan.scales
                    )
            except Diverged as error:
                await self._leave_out(state, batch, plan.step, error)
                return state
            self._diverged = 0
            stalled = time.monotonic()
            await self._landed()
            snapshot = await self._learner.snapshot()
            counted = row_counts(rollout for group in batch.contents for rollout in group.rollouts)
            counted |= self.buffer.ended.remembered()
            learned = {**numbers.values, **counted, "stall_s": time.monotonic() - stalled}
            record = plan.record(learned, at=self._deps.now(), traceparent=traceparent)
            following = self._following(state, record, snapshot.canary)
            self._persistence.begin(following, snapshot)
        logged = {name: round(record.metrics[name], 5) for name in _LOGGED if name in record.metrics}
        log.info("step_done", extra={"step": record.step, "version": record.version, **logged})
        self._waiting_since = time.monotonic()
        return following

    def _plan(self, state: SessionState, batch: _Batch) -> StepPlan:
        return StepPlan(
            spec=self.spec,
            step=state.step + 1,
            version=state.version,
            groups=batch.groups,
            idle_s=batch.idle_s,
            parent_checkpoint_id=state.parent_checkpoint_id,
            before=state.metrics,
            limits=self._deps.alarm_limits,
            drawn=self.buffer.drawn(batch.groups),
            success=self.buffer.ended.begin_step(),
        )

    async def _leave_out(self, state: SessionState, batch: _Batch, step: int, error: Diverged) -> None:
        """Exclude the groups of a batch that could not be applied. Raises Diverged after several in a row."""
        self._diverged += 1
        await self._landed()
        # A trainer that has taken the run may have trained these groups.
        await self._while_held(lambda held: self._deps.states.claim_again(state, held))
        for group in batch.groups:
            await self._exclude(excluded(group, GroupReason.QUARANTINED, str(error)))
        if self._diverged >= _MAX_DIVERGED:
            raise Diverged(
                f"{_MAX_DIVERGED} batches in a row could not be applied, the last for step {step}: "
                f"{error}; lower the learning rate, or begin from an earlier checkpoint"
            ) from error

    def _following(self, state: SessionState, record: StepRecord, canary: Canary) -> SessionState:
        """Everything but tensors that the next step depends on."""
        for settlement in record.settlements:
            self.buffer.remember(settlement)
        self.buffer.step_taken()
        identity = checkpoint_id(self.spec.model, record.version)
        return replace(
            state,
            version=record.version,
            step=record.step,
            cursor=self._cursor(),
            seen=self._watermark.handled,
            settled=self.buffer.settled.to_json(),
            settled_counts=dict(self.buffer.counts),
            sources=dict(Counter(state.sources) + record.sources),
            parent_checkpoint_id=identity if record.saves_checkpoint else state.parent_checkpoint_id,
            canary=canary,
            last_step=record,
        )

    async def _became_durable(self, state: SessionState) -> None:
        self.state, self.took_steps = state, True
        if state.last_step is not None:
            self.history.append(state.last_step)
        await self._enter(self.phase)

    def _cursor(self) -> int:
        """Sequence from which a replay finds everything that is not settled."""
        handled = self._watermark.handled if self.buffer.is_drained else self.buffer.seen
        first = self.buffer.first_unsettled_sequence
        bound = min(handled, self._watermark.bound)
        return bound if first is None else min(bound, first - 1)
