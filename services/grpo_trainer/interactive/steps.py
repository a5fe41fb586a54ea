"""Steps of interactive training: their configuration and record, and how they are announced and promoted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from blob_store import BlobRef
from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.domain.states import BasePolicy, SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.interactive.deps import InteractiveDeps
from grpo_trainer.interactive.inputs import Lora
from grpo_trainer.interactive.state import Head, InteractiveState, StepDone
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
        if name in ("tokens", "datums", "row_tokens", "untrainable", "without_task"):
            metrics[name] = sum(value for value, _ in known)
        else:
            metrics[name] = sum(value * weight for value, weight in known) / sum(w for _, w in known)
    return {**metrics, **numbers, "learning_rate": adam.learning_rate}


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
