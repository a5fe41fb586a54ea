"""Steps of interactive training: their configuration and record, and how they are announced and promoted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from blob_store import BlobRef
from grpo_trainer.domain.errors import LostGradients, NothingAccumulated
from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.domain.states import BasePolicy, SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.interactive.deps import InteractiveDeps
from grpo_trainer.interactive.inputs import Lora
from grpo_trainer.interactive.state import Head, InteractiveState, Persist, StepDone, Update
from grpo_trainer.interactive.unsaved import UnsavedSteps
from grpo_trainer.learner.prepared import Adam, MeasuredPass
from grpo_trainer.publishing import announce_version
from grpo_trainer.retrying import RetryUntilAvailable
from identities.entities import interactive_run_id
from upcycle.run_config import ALL_LINEAR
from upcycle.run_config.names import CONSTANT

_NO_RATE: Final = 1e-5
"""No step has it; a state of 0.3.0 names it."""


def interactive_spec(model: str, lora: Lora | None = None) -> TrainingSpec:
    """The configuration of an interactive session; each call brings its own loss and learning rate.

    Raises InvalidTrainingSpec.
    """
    adapters = Lora() if lora is None else lora
    return training_spec(
        run_id=interactive_run_id(model),
        model=model,
        group_size=2,
        loss="importance_sampling",
        learning_rate=_NO_RATE,
        lr_schedule=CONSTANT,
        lora_rank=adapters.rank,
        lora_alpha=adapters.alpha,
        lora_targets=adapters.targets or ALL_LINEAR,
    )


def session_of(spec: TrainingSpec, base: BasePolicy, record: StepRecord) -> SessionState:
    """The state after a step, without its tensors. base: the weights that the session was opened with."""
    return SessionState(
        spec=spec,
        base=base,
        first_version=base.version,
        version=record.version,
        step=record.step,
        opened_at=record.completed_at,
        parent_checkpoint_id=record.parent_checkpoint_id,
        last_step=record,
    )


def step_metrics(
    pending: Mapping[str, MeasuredPass], adam: Adam, numbers: Mapping[str, float]
) -> dict[str, float]:
    """Metrics of the step: those of the update, and the means over its passes, weighted by trained tokens."""
    weights = [max(each.metrics.get("tokens", 1.0), 1.0) for each in pending.values()]
    names = {name for each in pending.values() for name in each.metrics}
    metrics: dict[str, float] = {}
    for name in sorted(names):
        known = [
            (each.metrics[name], weight)
            for each, weight in zip(pending.values(), weights, strict=True)
            if name in each.metrics
        ]
        if name in ("loss_sum", "tokens", "datums", "row_tokens", "untrainable", "without_task"):
            metrics[name] = sum(value for value, _ in known)
        else:
            metrics[name] = sum(value * weight for value, weight in known) / sum(w for _, w in known)
    return {**metrics, **numbers, "learning_rate": adam.learning_rate}


def refuse_missing(model: str, update: Update, pending: Collection[str], *, kept_s: float) -> None:
    """Raises LostGradients, NothingAccumulated. pending: request ids of the accumulated gradients; kept_s:
    how long they are kept without a call."""
    missing = [one for one in update.gradients if one not in pending]
    if missing:
        raise LostGradients(
            f"{model}: gradients of {', '.join(missing)} are not accumulated (the trainer was "
            f"restarted, head moved, or no call came for {kept_s:g} s): call forward_backward again"
        )
    if not pending:
        raise NothingAccumulated(
            f"{model}: no gradient is accumulated; call forward_backward before optim_step"
        )


@dataclass(frozen=True, slots=True)
class TakenStep:
    """An update that the weights in memory have had. base: the weights that the session was opened with;
    pending: its passes; numbers: metrics of the update; steps: it, and those before it that are not saved."""

    spec: TrainingSpec
    base: BasePolicy
    head: Head
    update: Update
    pending: Mapping[str, MeasuredPass]
    numbers: Mapping[str, float]
    steps: UnsavedSteps

    @property
    def metrics(self) -> dict[str, float]:
        """Of this step alone."""
        return step_metrics(self.pending, self.update.adam, self.numbers)

    def session(self, version: int, at: datetime) -> SessionState:
        """The state after it, without its tensors. version: that it is published as."""
        record = StepRecord(  # it settles no group, because no run planned any
            step=self.steps.step,
            version=version,
            trajectory_ids=self.steps.trajectory_ids,
            metrics=self.metrics,
            completed_at=at,
            saves_checkpoint=self.update.persist is Persist.CHECKPOINT,
            parent_checkpoint_id=self.head.checkpoint_id,
        )
        return session_of(self.spec, self.base, record)

    def unsaved(self, sampler_path: str, version: int) -> StepDone:
        """Its result where no state was stored. sampler_path: key of its weights' manifest, if any."""
        return StepDone(
            step=self.steps.step,
            version=version,
            checkpoint_id="",
            sampler_path=sampler_path,
            state_path="",
            model=self.spec.model,
            metrics=self.metrics,
            is_head=False,
            persist=self.update.persist,
        )


async def prove(state: InteractiveState, deps: InteractiveDeps, retry: RetryUntilAvailable) -> None:
    """Raises BrokenArtifact where a state is not the one that was announced."""
    model, version = state.session.spec.model, state.session.version
    known = await retry.until_available(lambda: deps.policies.recorded_state(model, version))
    await retry.until_available(lambda: deps.states.prove(state, known))


async def announce_step(
    state: InteractiveState, deps: InteractiveDeps, retry: RetryUntilAvailable
) -> tuple[StepDone, Head]:
    """Publish policy.published and checkpoint.saved for a durable step, then move head unless keep_head.

    Safe to repeat. Returns the result of the step, and the checkpoint that the next step continues.
    """
    session, record = state.session, state.session.last_step
    if record is None:
        raise RuntimeError(f"{state.checkpoint_id} has no step")
    spec, policy = session.spec, PublishedPolicy(session.version, state.digest, state.manifest)
    marker = deps.states.marker_of(state)
    await announce_version(
        session, policy, marker, state.sources, deps.facts, retry, keeps_head=state.keep_head
    )
    promote = partial(
        deps.heads.promote,
        spec.model,
        state.checkpoint_id,
        expected_revision=state.head_revision,
        reason=f"interactive optimizer step {record.step}",
    )
    revision = None if state.keep_head else await retry.until_available(promote)
    head = Head(state.published, state.head_revision if revision is None else revision)
    return recorded(state, marker, is_head=revision is not None), head


def recorded(state: InteractiveState, marker: BlobRef, *, is_head: bool) -> StepDone:
    """The result of a step for its caller. marker: claim check of the state."""
    session, record = state.session, state.session.last_step
    return StepDone(
        step=session.step,
        version=session.version,
        checkpoint_id=state.checkpoint_id,
        sampler_path=state.manifest.key,
        state_path=marker.key,
        model=session.spec.model,
        metrics={} if record is None else record.metrics,
        is_head=is_head,
    )
