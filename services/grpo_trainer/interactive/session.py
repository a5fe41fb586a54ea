"""The interactive session of one model: passes accumulate gradients, an optimizer step makes a new version.

Guarantees:
- Calls about a model run one after another.
- The weights of a version are stored before the state that names them; both are durable before anything is
  published about them.
- A step that the process did not finish is finished when the model is opened again.
- Gradients are applied only to the weights that they were computed for.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from grpo_trainer.domain.errors import HeadMoved, HeldOutInput, InvalidInput, ModelBusy
from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import BasePolicy, SessionState
from grpo_trainer.interactive.deps import InteractiveDeps
from grpo_trainer.interactive.forwards import KeptForwards
from grpo_trainer.interactive.inputs import Lora, Pass, prepared_batch
from grpo_trainer.interactive.preparing import Preparer
from grpo_trainer.interactive.state import Head, InteractiveState, Persist, StepDone, Update, groups_after
from grpo_trainer.interactive.steps import (
    TakenStep,
    announce_step,
    interactive_spec,
    prove,
    recorded,
    refuse_missing,
)
from grpo_trainer.interactive.turns import ModelTurns
from grpo_trainer.interactive.unsaved import UnsavedLedger
from grpo_trainer.learner.prepared import DatumValues, MeasuredPass, PreparedBatch
from grpo_trainer.learner.protocol import Snapshot
from grpo_trainer.publishing import store_version
from grpo_trainer.retrying import RetryUntilAvailable

log = logging.getLogger(__name__)

_BUDGET_S: Final = 120.0
"""How long a call waits while the object store, the bus or another service is unavailable."""


class InteractiveSession:
    """See the module. Every public method but `close` runs under the model's lock and its lease.

    _generation: counts changes of the weights in memory; a forward pass of an earlier one is stale.
    """

    def __init__(self, model: str, deps: InteractiveDeps, stepped: Callable[[StepDone], None]) -> None:
        """stepped: called after each durable step."""
        self.model = model
        self._stepped = stepped
        self.called_at = 0.0
        """When the last call about the model began or ended."""
        self.lock = asyncio.Lock()
        self.retry = RetryUntilAvailable(budget_s=_BUDGET_S)
        self._deps = deps
        self._learner = deps.new_learner()
        self._preparer = Preparer(deps.trajectories, deps.conversations, self.retry)
        self._spec = interactive_spec(model)
        self._base: BasePolicy | None = None
        self._policy: Path | None = None
        self._at: Head | None = None
        self._newest: InteractiveState | None = None
        self._done: StepDone | None = None
        self._generation = 0
        self._pending: dict[str, MeasuredPass] = {}
        self._forwards = KeptForwards(model)
        self._turns = ModelTurns(model, deps)
        self._unsaved = UnsavedLedger(model, deps.states, self.retry)

    @property
    def has_gradients(self) -> bool:
        """Gradients are accumulated that no optimizer step has applied yet."""
        return bool(self._pending)

    @property
    def is_unsaved(self) -> bool:
        """Memory holds what a close would lose: gradients, or steps that were not saved."""
        return self.has_gradients or self._unsaved.steps is not None

    @property
    def version(self) -> int | None:
        """Of the weights in training; None while the model is closed."""
        return None if self._at is None else self._at.base.version

    async def forward(self, asked: Pass) -> tuple[str, int, tuple[DatumValues, ...]]:
        """Returns the id of the pass, the version of the weights, and the log-probabilities of every row."""
        async with self._turn():
            policy, head = await self._current(asked.lora)
            batch = await self._prepared(asked, policy)
            data, version = await self._learner.forward(batch), self._version_of(head)
            return self._forwards.keep(batch, self._generation, version), version, data

    async def forward_backward(self, request_id: str, asked: Pass) -> MeasuredPass:
        """Adds the gradient of a built-in loss to the accumulated ones."""
        async with self._turn():
            return await self._forward_backward(request_id, asked, *await self._current(asked.lora))

    async def _forward_backward(self, request_id: str, asked: Pass, policy: Path, head: Head) -> MeasuredPass:
        batch = await self._prepared(asked, policy)
        measured = await self._learner.forward_backward(
            batch, asked.loss, asked.num_substeps, logprobs=asked.logprobs
        )
        metrics = {**measured.metrics, **batch.metrics_at(self._version_of(head))}
        self._pending[request_id] = replace(measured, metrics=metrics)
        return self._pending[request_id]

    async def backward(
        self,
        request_id: str,
        forward_id: str,
        weights: Sequence[Sequence[float]],
        metrics: Mapping[str, float],
    ) -> MeasuredPass:
        """Adds the gradient that the caller computed on the rows of a forward pass."""
        async with self._turn():
            await self._current()
            batch = self._forwards.batch_of(forward_id, self._generation)
            measured = await self._learner.backward(batch, weights)
            self._pending[request_id] = replace(measured, metrics={**measured.metrics, **metrics})
            return self._pending[request_id]

    async def step(self, request_id: str, asked: Pass, update: Update) -> tuple[MeasuredPass, StepDone]:
        """forward_backward and optim_step as one request; if the newest durable step has this request id, its
        recorded result is returned and nothing is computed."""
        async with self._turn():
            policy, head = await self._current(asked.lora)
            if (done := self._repeated(request_id)) is not None:
                return MeasuredPass(done.metrics, int(done.metrics.get("datums", 0))), done
            measured = await self._forward_backward(request_id, asked, policy, head)
            only = replace(update, gradients=(request_id,))
            _, head = await self._current()  # head may have moved during the pass
            return measured, await self._optim_step(request_id, only, head)

    async def optim_step(self, request_id: str, update: Update) -> StepDone:
        """One update with all accumulated gradients. It is saved as update.persist says; a checkpoint is
        durable, published and, unless update.keep_head, promoted when this returns."""
        async with self._turn():
            _, head = await self._current()
            if (done := self._repeated(request_id)) is not None:
                return done
            return await self._optim_step(request_id, update, head)

    async def close(self) -> None:
        """Free the model's memory; accumulated gradients are lost, and steps that were not saved."""
        self._pending.clear()
        self._forwards.clear()
        self._unsaved.steps = None
        self._policy = self._at = None
        self._generation += 1
        await self._learner.close()

    async def leave(self) -> None:
        """`close`, and give the model back."""
        await self.close()
        self._turns.let_go()

    def _repeated(self, request_id: str) -> StepDone | None:
        """The recorded result, if the newest durable step was made by this request id."""
        newest = self._newest
        return self._done if newest is not None and newest.request_id == request_id else None

    async def _prepared(self, asked: Pass, policy: Path) -> PreparedBatch:
        prepared = await self._preparer.prepare(asked.inputs, policy, asked.loss)
        batch = prepared_batch(prepared, asked.options, asked.loss)
        await self._claim(batch)
        return batch

    async def _claim(self, batch: PreparedBatch) -> None:
        """Claim tasks as training data, and keep runs from retention, before anything is computed on them.
        The planner decides, not the split in the stored body, which may be old. Raises HeldOutInput."""
        claims, by = self._deps.claims, f"interactive training of {self.model}"
        try:
            if batch.tasks or batch.runs:
                await self.retry.until_available(lambda: claims.claim(batch.tasks, by, batch.runs))
        except HeldOutInput as error:
            raise HeldOutInput(f"{batch.named_in(str(error))}: {error}") from error

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold the model's lock and its lease. Raises ModelBusy, after dropping the accumulated gradients,
        while a run trains the model: the run changes the weights that they belong to. The model is closed
        then, because the next call may find steps of another trainer, for which head need not have moved."""
        async with self.lock:
            try:
                if self._turns.is_lost:
                    await self.close()
                await self.retry.until_available(self._turns.hold)
                await self.retry.until_available(self._begin_call)
            except ModelBusy:
                await self.leave()
                raise
            try:
                yield
            finally:
                self._deps.leases.end_call(self.model)

    async def _begin_call(self) -> None:
        self._deps.leases.begin_call(self.model)

    async def _current(self, lora: Lora | None = None) -> tuple[Path, Head]:
        """The weights in training, opened if they are not in memory, or if head was set elsewhere since.

        lora: which parameters train from now on. Raises HeadMoved, UnknownModel, InvalidInput,
        InvalidTrainingSpec.
        """
        spec = None if lora is None else interactive_spec(self.model, lora)
        head = await self.retry.until_available(lambda: self._deps.heads.head(self.model))
        at = self._at
        if at is None or self._policy is None:
            return await self._open(head, spec)
        if not self._goes_on(head, at):
            await self._refuse_pending(head, at)
            return await self._open(head, spec)
        self._at = at = replace(at, revision=head.revision)
        if spec is None or spec == self._spec:
            return self._policy, at
        if self.is_unsaved:
            what = "gradients" if self._pending else "unsaved steps"
            raise InvalidInput(
                f"{self.model}: {what} of {self._spec.parameters} are accumulated, this asks for "
                f"{spec.parameters}: call optim_step with persist=checkpoint first"
            )
        return await self._open(head, spec)

    def _goes_on(self, head: Head, at: Head) -> bool:
        """True if `at` is still what trains. Weights that no step of the session made are left when head is
        moved from them, also by the gate."""
        is_own = self._newest is not None and self._newest.published == at.base
        is_head = head.revision == at.revision or head.checkpoint_id == at.checkpoint_id
        return is_head or (is_own and head.leaves(at.base, at.revision))

    async def _refuse_pending(self, head: Head, at: Head) -> None:
        if self._pending:
            await self.discard()
            raise HeadMoved(
                f"{self.model}: head was set to {head.checkpoint_id} while gradients were accumulated on "
                f"{at.checkpoint_id}; they are dropped: call forward_backward again"
            )

    async def discard(self) -> None:
        """Drop accumulated gradients; an update that names one is refused. The caller holds the lock."""
        if self._pending:
            await self._learner.drop()
        self._pending.clear()

    async def give_up(self) -> None:
        """Drop what was not saved: the next call reports lost steps. The caller holds the lock."""
        await self.discard()
        if self._unsaved.steps is not None:
            await self.close()

    async def _open(self, head: Head, spec: TrainingSpec | None) -> tuple[Path, Head]:
        """Open the newest state if head still points to it or has not moved since its step; else open head.

        A step that was not announced or not promoted is finished first. spec: which parameters train; None:
        the same as last time.
        """
        await self.close()
        deps, retry = self._deps, self.retry
        self._newest = state = await retry.until_available(self._turns.newest_state)
        await self._unsaved.refuse_lost(state)
        if state is not None:
            await prove(state, deps, retry)
            known = await retry.until_available(lambda: deps.heads.holds(self.model, state.checkpoint_id))
            if not known or state.is_unpromoted(head):
                await self._finish(state)
                head = await retry.until_available(lambda: deps.heads.head(self.model))
            is_head = head.checkpoint_id == state.checkpoint_id
            self._done = recorded(state, deps.states.marker_of(state), is_head=is_head)
            if state.is_current(head):
                head = Head(state.published, head.revision)
            spec = spec or state.session.spec
        return await self._follow(head, spec or interactive_spec(self.model))

    async def _follow(self, head: Head, spec: TrainingSpec) -> tuple[Path, Head]:
        """Load the weights of head, with their optimizer state if one for the same parameters is kept."""
        kept = await self._kept(head.base.version)
        if kept is not None and kept.published == head.base and kept.session.spec == spec:
            policy = await self._resume(kept)
        else:
            policy = await self.retry.until_available(lambda: self._deps.policies.fetch(head.base))
            await self._learner.begin(spec, policy)
            self._base, self._spec = head.base, spec
        self._policy, self._at = policy, head
        log.info("model_opened", extra={"model": self.model, "checkpoint_id": head.checkpoint_id})
        return policy, head

    async def _kept(self, version: int) -> InteractiveState | None:
        """The state whose step produced a version; None if there is none or it was pruned."""
        newest = self._newest
        if newest is None or newest.session.version == version:
            return newest
        kept = await self.retry.until_available(lambda: self._deps.states.of_version(self.model, version))
        if kept is not None:
            await prove(kept, self._deps, self.retry)
        return kept

    async def _resume(self, state: InteractiveState) -> Path:
        """Load the learner as it was after the step of a state."""
        session = state.session
        with tempfile.TemporaryDirectory(dir=self._deps.work_dir) as folder:
            await self.retry.until_available(lambda: self._deps.states.tensors(state, Path(folder)))
            policy = await self.retry.until_available(lambda: self._deps.policies.fetch(session.base))
            await self._learner.resume(session.spec, policy, Path(folder))
        self._policy, self._base, self._spec = policy, session.base, session.spec
        return policy

    async def _optim_step(self, request_id: str, update: Update, head: Head) -> StepDone:
        refuse_missing(self.model, update, self._pending, kept_s=self._deps.gradients_kept_s)
        is_saved = update.persist is Persist.CHECKPOINT
        steps = await self._unsaved.begin(self._newest, head.base.version, is_saved=is_saved)
        pending, self._pending = self._pending, {}
        try:
            numbers = await self._learner.apply(update.adam)
        except BaseException:
            await self._unsaved.not_taken(is_saved=is_saved)
            raise
        finally:
            self._generation += 1
        steps = steps.trained(pending.values())
        taken = TakenStep(self._spec, self._base or head.base, head, update, pending, numbers, steps)
        try:
            done = await (self._save(request_id, taken) if is_saved else self._leave_unsaved(taken))
        except BaseException:
            # The weights in memory may be newer than the durable ones, so the next call loads those.
            await self.close()
            raise
        self._stepped(done)
        return done

    async def _save(self, request_id: str, taken: TakenStep) -> StepDone:
        """Store, announce and promote a step, and with it those before it that were not saved."""
        session, policy, snapshot = await self._stored(taken)
        groups = groups_after(await self._groups_before(taken.head), taken.steps.groups)
        revision, keep_head = taken.head.revision, taken.update.keep_head
        state = InteractiveState(
            session, policy.manifest, policy.digest, request_id, revision, keep_head, groups
        )
        done = await self._finish(await self._persist(state, snapshot))
        await self._unsaved.all_saved()
        return done

    async def _leave_unsaved(self, taken: TakenStep) -> StepDone:
        """Publish the weights of a step, if they are to be; the rest of it stays in memory."""
        steps, path = taken.steps, ""
        if taken.update.persist is Persist.WEIGHTS:
            session, policy, _ = await self._stored(taken)
            publish = partial(self._deps.facts.publish_policy, session.spec, policy, step=session.step)
            await self.retry.until_available(lambda: publish(at=session.completed_at))
            steps, path = replace(steps, version=session.version), policy.manifest.key
        self._unsaved.steps = steps
        return taken.unsaved(path, steps.version)

    async def _stored(self, taken: TakenStep) -> tuple[SessionState, PublishedPolicy, Snapshot]:
        """The weights of a step, stored as the next version; no event names it yet."""
        deps, snapshot = self._deps, await self._learner.snapshot()
        newest = await self.retry.until_available(lambda: deps.policies.newest_uploaded(self.model))
        session = taken.session(max(newest, taken.head.base.version) + 1, deps.now())
        session = replace(session, canary=snapshot.canary)
        policy = await store_version(session, snapshot, deps.policies, deps.work_dir, self.retry)
        return session, policy, snapshot

    def _version_of(self, head: Head) -> int:
        """The newest published version that the weights in memory are, or were trained from."""
        unsaved = self._unsaved.steps
        return head.base.version if unsaved is None else unsaved.version

    async def _groups_before(self, head: Head) -> Mapping[str, Any]:
        """The groups that the weights of head were trained on; empty if its state is not kept."""
        kept = await self._kept(head.base.version)
        return kept.groups if kept is not None and kept.published == head.base else {}

    async def _persist(self, state: InteractiveState, snapshot: Snapshot) -> InteractiveState:
        """Store the tensors of the step, then its marker."""
        with tempfile.TemporaryDirectory(dir=self._deps.work_dir) as folder:
            await self.retry.until_available(lambda: snapshot.save(Path(folder)))
            return await self.retry.until_available(lambda: self._deps.states.commit(state, Path(folder)))

    async def _finish(self, state: InteractiveState) -> StepDone:
        """Announce and promote a durable step, then delete old states. Safe to repeat."""
        self._done, self._at = await announce_step(state, self._deps, self.retry)
        self._newest = state
        await self.retry.until_available(
            lambda: self._deps.states.prune(self.model, newest=self._deps.keep_states)
        )
        return self._done
