"""A durable step of interactive training: what it is called, how it is published, how head moves to it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from blob_store import BlobRef
from grpo_trainer.domain.spec import TrainingSpec, training_spec
from grpo_trainer.domain.states import BasePolicy, SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.interactive.deps import InteractiveDeps
from grpo_trainer.interactive.inputs import Lora
from grpo_trainer.interactive.state import Head, InteractiveState, StepDone
from grpo_trainer.learner.prepared import Adam, Measured
from grpo_trainer.learner.protocol import Snapshot
from grpo_trainer.ports import PublishedPolicy
from grpo_trainer.retrying import RetryUntilAvailable
from identities.entities import interactive_run_id
from upcycle.run_config import ALL_LINEAR


def interactive_spec(model: str, lora: Lora | None = None) -> TrainingSpec:
    """The configuration under which a model is trained interactively; each call brings its own loss and rate.

    Raises InvalidTrainingSpec."""
    adapters = Lora() if lora is None else lora
    return training_spec(
        run_id=interactive_run_id(model),
        model=model,
        group_size=2,
        loss="importance_sampling",
        lora_rank=adapters.rank,
        lora_alpha=adapters.alpha,
        lora_targets=adapters.targets or ALL_LINEAR,
    )


def step_record(
    *,
    step: int,
    version: int,
    parent: Head,
    at: datetime,
    metrics: Mapping[str, float],
    trajectory_ids: tuple[str, ...],
) -> StepRecord:
    """A step that settles nothing, since no run planned it, and always saves a checkpoint. parent: what it
    goes on from."""
    return StepRecord(
        step=step,
        version=version,
        trajectory_ids=trajectory_ids,
        settlements=(),
        metrics=metrics,
        staleness={},
        completed_at=at,
        traceparent="",
        saves_checkpoint=True,
        is_final=False,
        parent_checkpoint_id=parent.checkpoint_id,
    )


def session_of(spec: TrainingSpec, base: BasePolicy, record: StepRecord) -> SessionState:
    """The state after a step, without its tensors. base: what the learner began with."""
    return SessionState(
        spec=spec,
        base=base,
        first_version=base.version,
        version=record.version,
        step=record.step,
        cursor=0,
        seen=0,
        settled={},
        settled_counts={},
        held_out_tasks=(),
        opened_at=record.completed_at,
        parent_checkpoint_id=record.parent_checkpoint_id,
        trace_headers={},
        last_step=record,
    )


def step_metrics(
    pending: Mapping[str, Measured], adam: Adam, numbers: Mapping[str, float]
) -> dict[str, float]:
    """Metrics of the checkpoint: of the update, and of the passes before it, weighted by their tokens."""
    weights = [max(each.metrics.get("tokens", 1.0), 1.0) for each in pending.values()]
    names = {name for each in pending.values() for name in each.metrics}
    metrics: dict[str, float] = {}
    for name in sorted(names):
        known = [
            (each.metrics[name], weight)
            for each, weight in zip(pending.values(), weights, strict=True)
            if name in each.metrics
        ]
        if name in ("tokens", "datums", "row_tokens", "untrainable"):
            metrics[name] = sum(value for value, _ in known)
        else:
            metrics[name] = sum(value * weight for value, weight in known) / sum(w for _, w in known)
    return {**metrics, **numbers, "learning_rate": adam.learning_rate}


async def publish(
    session: SessionState, tools: InteractiveDeps, snapshot: Snapshot, retry: RetryUntilAvailable
) -> PublishedPolicy:
    """Store the version of `session`, which is not announced yet. Raises LineageTaken where another trainer
    has taken the number."""
    with tempfile.TemporaryDirectory(dir=tools.work_dir) as folder:
        directory = Path(folder) / "policy"
        await snapshot.export(directory)
        return await retry.until_available(
            lambda: tools.policies.publish(session, directory, at=session.opened_at)
        )


async def announce_step(
    state: InteractiveState, tools: InteractiveDeps, retry: RetryUntilAvailable
) -> tuple[StepDone, Head]:
    """Say that a durable step is there, and move head unless it is to stay; all of it may be repeated.

    Returns what the caller is told, and where training goes on.
    """
    session, record = state.session, state.session.last_step
    if record is None:
        raise RuntimeError(f"{state.checkpoint_id} has no step")
    spec, policy = session.spec, PublishedPolicy(session.version, state.digest, state.manifest)
    marker, at = tools.states.marker_of(state), record.completed_at
    await retry.until_available(lambda: tools.facts.published(spec, policy, step=record.step, at=at))
    await retry.until_available(lambda: tools.facts.saved(spec, record, policy, marker, state.sources))
    promote = partial(
        tools.heads.promote,
        spec.model,
        state.checkpoint_id,
        expected_revision=state.head_revision,
        reason=f"interactive optimizer step {record.step}",
    )
    revision = None if state.keep_head else await retry.until_available(promote)
    head = Head(state.published, state.head_revision if revision is None else revision)
    return recorded(state, marker, is_head=revision is not None), head


def recorded(state: InteractiveState, marker: BlobRef, *, is_head: bool) -> StepDone:
    """What the caller of the step is told. marker: claim check of the state."""
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
