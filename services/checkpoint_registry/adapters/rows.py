"""Rows to values and back."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping

from blob_store import BlobRef
from checkpoint_registry.domain.evidence import Evaluation, SamplingProfile, Tally
from checkpoint_registry.domain.jobs import EvaluationRequest, GateJob, GateSpec, JobPhase, RequestState
from checkpoint_registry.domain.models import (
    Checkpoint,
    CheckpointState,
    EngineLease,
    HeadMove,
    Model,
    PublishedVersion,
)


def model_of(row: RowMapping, latest: PublishedVersion) -> Model:
    """A row of `model` with its newest checkpoint and the time of its last move of head."""
    return Model(
        model=row["model"],
        forked_from_checkpoint_id=row["forked_from_checkpoint_id"],
        head_checkpoint_id=row["head_checkpoint_id"],
        head_version=row["head_version"],
        head_revision=row["head_revision"],
        newest_version=row["newest_version"],
        latest=latest,
        promoted_at=row["promoted_at"],
        created_at=row["created_at"],
    )


def checkpoint_of(row: RowMapping) -> Checkpoint:
    """A row of `checkpoint` joined with its model's head."""
    state = row["training_state"]
    return Checkpoint(
        checkpoint_id=row["checkpoint_id"],
        model=row["model"],
        version=row["version"],
        parent_checkpoint_id=row["parent_checkpoint_id"],
        digest=row["digest"],
        manifest=BlobRef(**row["manifest"]),
        state=CheckpointState(row["state"]),
        created_at=row["created_at"],
        training_state=BlobRef(**state) if state else None,
        run_id=row["run_id"],
        step=row["step"],
        reason=row["reason"],
        gate_json=row["gate_json"],
        metrics=row["metrics"],
        sources=row["sources"],
        is_head=row["checkpoint_id"] == row["head_checkpoint_id"],
    )


def checkpoint_values(checkpoint: Checkpoint) -> dict[str, Any]:
    """Columns of a new checkpoint."""
    values = asdict(checkpoint)
    values.pop("is_head")
    values["state"] = checkpoint.state.value
    values["metrics"] = dict(checkpoint.metrics)
    values["sources"] = dict(checkpoint.sources)
    return values


def move_of(row: RowMapping) -> HeadMove:
    """A row of `head_move`."""
    return HeadMove(
        model=row["model"],
        revision=row["revision"],
        from_checkpoint_id=row["from_checkpoint_id"],
        to_checkpoint_id=row["to_checkpoint_id"],
        actor=row["actor"],
        reason=row["reason"],
        moved_at=row["moved_at"],
    )


def lease_of(row: RowMapping) -> EngineLease:
    """A row of `engine_lease`."""
    return EngineLease(row["engine_id"], row["model"], row["channel"], row["body"], row["expires_at"])


def job_of(row: RowMapping) -> GateJob:
    """A row of `gate_job`."""
    return GateJob(
        checkpoint_id=row["checkpoint_id"],
        model=row["model"],
        version=row["version"],
        run_id=row["run_id"],
        phase=JobPhase(row["phase"]),
        created_at=row["created_at"],
        traceparent=row["traceparent"],
        gate=GateSpec(**row["gate"]) if row["gate"] else None,
        profile=SamplingProfile(**row["profile"]) if row["profile"] else None,
        taskset_digest=row["taskset_digest"],
        taskset_revision=row["taskset_revision"],
    )


def job_values(job: GateJob) -> dict[str, Any]:
    """Columns of a job, without its slot."""
    values = asdict(job)
    values["phase"] = job.phase.value
    return values


def evaluation_of(row: RowMapping) -> Evaluation:
    """A row of `evaluation`; a tally is stored as [family, successes, attempts]."""
    return Evaluation(
        run_id=row["run_id"],
        checkpoint_id=row["checkpoint_id"],
        taskset=row["taskset"],
        taskset_digest=row["taskset_digest"],
        profile_key=row["profile_key"],
        num_tasks=row["num_tasks"],
        tallies={slug: Tally(*tally) for slug, tally in row["tallies"].items()},
        finished_at=row["finished_at"],
    )


def evaluation_values(evaluation: Evaluation) -> dict[str, Any]:
    """Columns of an evaluation."""
    tallies = {slug: [t.family, t.successes, t.attempts] for slug, t in evaluation.tallies.items()}
    return {
        "run_id": evaluation.run_id,
        "checkpoint_id": evaluation.checkpoint_id,
        "taskset": evaluation.taskset,
        "taskset_digest": evaluation.taskset_digest,
        "profile_key": evaluation.profile_key,
        "num_tasks": evaluation.num_tasks,
        "tallies": tallies,
        "finished_at": evaluation.finished_at,
    }


def request_of(row: RowMapping) -> EvaluationRequest:
    """A row of `evaluation_request`."""
    return EvaluationRequest(
        request_id=row["request_id"],
        checkpoint_id=row["checkpoint_id"],
        taskset_digest=row["taskset_digest"],
        profile_key=row["profile_key"],
        attempt=row["attempt"],
        run_id=row["run_id"],
        state=RequestState(row["state"]),
        detail=row["detail"],
        updated_at=row["updated_at"],
    )


def request_values(request: EvaluationRequest) -> dict[str, Any]:
    """Columns of a request."""
    return {**asdict(request), "state": request.state.value}
