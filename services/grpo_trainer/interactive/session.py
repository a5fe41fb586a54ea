"""One model that is trained interactively: gradients accumulate, an optimizer step makes a version of them.

Guarantees: calls take turns; a version is stored before the state that names it, and neither is announced
before both are durable; a step that was cut off is finished when the model is opened again; gradients are
never applied to weights that they were not computed for.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from grpo_trainer.domain.errors import (
    HeadMoved,
    InvalidInput,
    LostGradients,
    ModelBusy,
    NothingAccumulated,
    StaleForward,
    UnknownForward,
)
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import BasePolicy, SessionState
from grpo_trainer.interactive.deps import InteractiveDeps
from grpo_trainer.interactive.inputs import Lora, Pass, prepared_batch
from grpo_trainer.interactive.preparing import Preparer
from grpo_trainer.interactive.state import Head, InteractiveState, StepDone, Update, groups_after
from grpo_trainer.interactive.steps import (
    announce_step,
    interactive_spec,
    publish,
    recorded,
    session_of,
    step_metrics,
    step_record,
)
from grpo_trainer.learner.prepared import DatumValues, Measured, PreparedBatch
from grpo_trainer.learner.protocol import Snapshot
from grpo_trainer.patience import Patience

log = logging.getLogger(__name__)

_MAX_FORWARDS: Final = 8
"""Forward passes that may still get their backward; each keeps its rows in memory."""
_BUDGET_S: Final = 120.0
"""How long a call waits for a store, a bus or a registry that is away."""


@dataclass(frozen=True, slots=True)
class _Forward:
    batch: PreparedBatch
    generation: int
    version: int


class InteractiveSession:
    """See the module. Every public method takes the model's lock."""

    def __init__(self, model: str, tools: InteractiveDeps) -> None:
        self.model = model
        self.lock = asyncio.Lock()
        self.patience = Patience(budget_s=_BUDGET_S)
        self._tools = tools
        self._learner = tools.new_learner()
        self._preparer = Preparer(tools.trajectories, tools.conversations, self.patience)
        self._spec = interactive_spec(model)
        self._base: BasePolicy | None = None
        self._policy: Path | None = None
        self._at: Head | None = None
        self._newest: InteractiveState | None = None
        self._done: StepDone | None = None
        self._generation = 0
        self._pending: dict[str, Measured] = {}
        self._forwards: OrderedDict[str, _Forward] = OrderedDict()

    @property
    def has_gradients(self) -> bool:
        """An optimizer step would have something to apply."""
        return bool(self._pending)

    @property
    def version(self) -> int | None:
        """Of the weights in training; None while the model is closed."""
        return None if self._at is None else self._at.base.version

    async def forward(self, asked: Pass) -> tuple[str, int, tuple[DatumValues, ...]]:
        """Id of the pass, version of the weights, and the log-probabilities of every row."""
        async with self.lock:
            policy, head = await self._current(asked.lora)
            batch = await self._prepared(asked, policy)
            data = await self._learner.forward(batch)
            forward_id = f"fwd-{uuid.uuid4().hex[:16]}"
            self._forwards[forward_id] = _Forward(batch, self._generation, head.base.version)
            while len(self._forwards) > _MAX_FORWARDS:
                self._forwards.popitem(last=False)
            return forward_id, head.base.version, data

    async def forward_backward(self, request_id: str, asked: Pass) -> Measured:
        """Adds the gradient of a built-in loss."""
        async with self.lock:
            return await self._forward_backward(request_id, asked, *await self._current(asked.lora))

    async def _forward_backward(self, request_id: str, asked: Pass, policy: Path, head: Head) -> Measured:
        batch = await self._prepared(asked, policy)
        measured = await self._learner.forward_backward(batch, asked.loss, asked.num_substeps)
        versions = [one.oldest_version for one in batch.inputs if one.oldest_version is not None]
        age = {"staleness_max": float(head.base.version - min(versions))} if versions else {}
        self._pending[request_id] = replace(measured, metrics={**measured.metrics, **age})
        return self._pending[request_id]

    async def backward(
        self,
        request_id: str,
        forward_id: str,
        weights: Sequence[Sequence[float]],
        metrics: Mapping[str, float],
    ) -> Measured:
        """Adds the gradient that the caller worked out on the rows of a forward pass."""
        async with self.lock:
            await self._current()
            found = self._forwards.get(forward_id)
            if found is None:
                raise UnknownForward(
                    f"{self.model}: forward pass {forward_id!r} is not kept (the last {_MAX_FORWARDS} are, "
                    "until the trainer restarts): call forward again"
                )
            if found.generation != self._generation:
                raise StaleForward(
                    f"{self.model}: {forward_id} was computed at v{found.version}, and the weights have "
                    "changed since: call forward again"
                )
            measured = await self._learner.backward(found.batch, weights)
            self._pending[request_id] = replace(measured, metrics={**measured.metrics, **metrics})
            return self._pending[request_id]

    async def step(self, request_id: str, asked: Pass, update: Update) -> tuple[Measured, StepDone]:
        """forward_backward and optim_step under one id; a repeated one computes nothing again."""
        async with self.lock:
            policy, head = await self._current(asked.lora)
            if (done := self._repeated(request_id)) is not None:
                return Measured(done.metrics, int(done.metrics.get("datums", 0))), done
            measured = await self._forward_backward(request_id, asked, policy, head)
            only = replace(update, gradients=(request_id,))
            _, head = await self._current()  # a pass takes its time: head may be elsewhere by now
            return measured, await self._optim_step(request_id, only, head)

    async def optim_step(self, request_id: str, update: Update) -> StepDone:
        """One update with all gradients since the last; durable, published and, unless told not to,
        promoted."""
        async with self.lock:
            _, head = await self._current()
            if (done := self._repeated(request_id)) is not None:
                return done
            return await self._optim_step(request_id, update, head)

    async def close(self) -> None:
        """Let the memory go; gradients are lost."""
        self._pending.clear()
        self._forwards.clear()
        self._policy = self._at = None
        self._generation += 1
        await self._learner.close()

    def _repeated(self, request_id: str) -> StepDone | None:
        """The recorded answer, where the newest durable step was made by this very request."""
        newest = self._newest
        return self._done if newest is not None and newest.request_id == request_id else None

    async def _prepared(self, asked: Pass, policy: Path) -> PreparedBatch:
        prepared = await self._preparer.prepare(asked.inputs, policy, asked.loss)
        batch = prepared_batch(prepared, asked.options, asked.loss)
        await self._claim(batch.tasks)
        return batch

    async def _claim(self, digests: Sequence[str]) -> None:
        """All tasks are training data before anything is computed on them, whatever the stored body says:
        a task may have been held out since."""
        if digests:
            claims, by = self._tools.claims, f"interactive training of {self.model}"
            await self.patience.until_done(lambda: claims.claim(digests, by))

    async def _current(self, lora: Lora | None = None) -> tuple[Path, Head]:
        """Opens the model, or follows a head that was set elsewhere. lora: what is to train from now on.

        Raises ModelBusy, HeadMoved, UnknownModel, InvalidInput, InvalidTrainingSpec.
        """
        run = await self.patience.until_done(self._trainer)
        if run is not None:
            await self._discard()
            raise ModelBusy(f"run {run} trains {self.model!r}: wait until it is over, or stop it")
        spec = None if lora is None else interactive_spec(self.model, lora)
        head = await self.patience.until_done(lambda: self._tools.heads.head(self.model))
        at = self._at
        if at is None or self._policy is None:
            return await self._open(head, spec)
        if head.revision != at.revision and head.checkpoint_id != at.checkpoint_id:
            await self._refuse_pending(head, at)
            return await self._open(head, spec)
        self._at = at = replace(at, revision=head.revision)
        if spec is None or spec == self._spec:
            return self._policy, at
        if self._pending:
            raise InvalidInput(
                f"{self.model}: gradients of {_named(self._spec)} are accumulated, this asks for "
                f"{_named(spec)}: call optim_step first"
            )
        return await self._open(head, spec)

    async def _trainer(self) -> str | None:
        return self._tools.busy(self.model)

    async def _refuse_pending(self, head: Head, at: Head) -> None:
        if self._pending:
            await self._discard()
            raise HeadMoved(
                f"{self.model}: head was set to {head.checkpoint_id} while gradients were accumulated on "
                f"{at.checkpoint_id}; they are dropped: call forward_backward again"
            )

    async def _discard(self) -> None:
        if self._pending:
            await self._learner.drop()
        self._pending.clear()

    async def _open(self, head: Head, spec: TrainingSpec | None) -> tuple[Path, Head]:
        """The newest state, if it is unfinished or head still is where it left it; else head itself.

        spec: what is to train; None: what trained last.
        """
        await self.close()
        tools, patience = self._tools, self.patience
        self._newest = state = await patience.until_done(lambda: tools.states.newest(self.model))
        if state is not None:
            known = await patience.until_done(lambda: tools.heads.holds(self.model, state.checkpoint_id))
            if not known or state.is_unpromoted(head):
                await self._finish(state)
                head = await patience.until_done(lambda: tools.heads.head(self.model))
            is_head = head.checkpoint_id == state.checkpoint_id
            self._done = recorded(state, tools.states.marker_of(state), is_head=is_head)
            if state.is_current(head):
                head = Head(state.published, head.revision)
            spec = spec or state.session.spec
        return await self._follow(head, spec or interactive_spec(self.model))

    async def _follow(self, head: Head, spec: TrainingSpec) -> tuple[Path, Head]:
        """These weights; with their optimizer state, where one of the same kind is kept."""
        kept = await self._kept(head.base.version)
        if kept is not None and kept.published == head.base and kept.session.spec == spec:
            policy = await self._resume(kept)
        else:
            policy = await self.patience.until_done(lambda: self._tools.policies.fetch(head.base))
            await self._learner.begin(spec, policy)
            self._base, self._spec = head.base, spec
        self._policy, self._at = policy, head
        log.info("model_opened", extra={"model": self.model, "checkpoint_id": head.checkpoint_id})
        return policy, head

    async def _kept(self, version: int) -> InteractiveState | None:
        """The state that produced a version, if there is one and it was not pruned."""
        newest = self._newest
        if newest is None or newest.session.version == version:
            return newest
        return await self.patience.until_done(lambda: self._tools.states.of_version(self.model, version))

    async def _resume(self, state: InteractiveState) -> Path:
        """The learner as it was when the state became durable."""
        session = state.session
        policy = await self.patience.until_done(lambda: self._tools.policies.fetch(session.base))
        with tempfile.TemporaryDirectory(dir=self._tools.work_dir) as folder:
            await self.patience.until_done(lambda: self._tools.states.tensors(state, Path(folder)))
            await self._learner.resume(session.spec, policy, Path(folder))
        self._policy, self._base, self._spec = policy, session.base, session.spec
        return policy

    async def _optim_step(self, request_id: str, update: Update, head: Head) -> StepDone:
        self._refuse_missing(update.gradients)
        pending, self._pending = self._pending, {}
        try:
            numbers = await self._learner.apply(update.adam)
        finally:
            self._generation += 1
        try:
            snapshot = await self._learner.snapshot()
            session = replace(await self._session(head, update, pending, numbers), canary=snapshot.canary)
            policy = await publish(session, self._tools, snapshot, self.patience)
            groups = groups_after(
                await self._groups_before(head), (one for each in pending.values() for one in each.groups)
            )
            state = InteractiveState(
                session, policy.manifest, policy.digest, request_id, head.revision, update.keep_head, groups
            )
            done = await self._finish(await self._persist(state, snapshot))
        except BaseException:
            # The weights in memory may be ahead of what is durable: the next call opens the durable ones.
            await self.close()
            raise
        self._tools.stepped(done)
        return done

    def _refuse_missing(self, gradients: Sequence[str]) -> None:
        missing = [one for one in gradients if one not in self._pending]
        if missing:
            raise LostGradients(
                f"{self.model}: gradients of {', '.join(missing)} are not accumulated (the trainer was "
                "restarted, or head moved): call forward_backward again"
            )
        if not self._pending:
            raise NothingAccumulated(
                f"{self.model}: no gradient is accumulated; call forward_backward before optim_step"
            )

    async def _session(
        self, head: Head, update: Update, pending: Mapping[str, Measured], numbers: Mapping[str, float]
    ) -> SessionState:
        """The state after the step, without its tensors. numbers: metrics of the update."""
        tools = self._tools
        newest = await self.patience.until_done(lambda: tools.policies.newest_version(self.model))
        record = step_record(
            step=1 if self._newest is None else self._newest.session.step + 1,
            version=max(newest, head.base.version) + 1,
            parent=head,
            at=tools.now(),
            metrics=step_metrics(pending, update.adam, numbers),
            trajectory_ids=tuple(one for each in pending.values() for one in each.trajectory_ids),
        )
        return session_of(self._spec, head.base if self._base is None else self._base, record)

    async def _groups_before(self, head: Head) -> Mapping[str, Any]:
        """What the weights of head have trained on, as far as its state is kept."""
        kept = await self._kept(head.base.version)
        return kept.groups if kept is not None and kept.published == head.base else {}

    async def _persist(self, state: InteractiveState, snapshot: Snapshot) -> InteractiveState:
        """Weights, moments and what the step was, durable under one marker."""
        with tempfile.TemporaryDirectory(dir=self._tools.work_dir) as folder:
            await snapshot.save(Path(folder))
            return await self.patience.until_done(lambda: self._tools.states.commit(state, Path(folder)))

    async def _finish(self, state: InteractiveState) -> StepDone:
        """Announce and promote a durable step; repeated, it does what is left to do."""
        self._done, self._at = await announce_step(state, self._tools, self.patience)
        self._newest = state
        await self.patience.until_done(
            lambda: self._tools.states.prune(self.model, newest=self._tools.keep_states)
        )
        return self._done


def _named(spec: TrainingSpec) -> str:
    return f"adapters of rank {spec.lora_rank}" if spec.lora_rank else "all weights"
