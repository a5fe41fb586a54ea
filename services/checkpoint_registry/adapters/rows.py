"""Rows to values and back. A column has the name of its field."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import RowMapping

from blob_store import BlobRef
from checkpoint_registry.domain.evidence import Evaluation, SamplingProfile, Tally
from checkpoint_registry.domain.jobs import GateJob, GateSpec, JobPhase
from checkpoint_registry.domain.models import (
    CanaryRelease,
    Checkpoint,
    CheckpointState,
    EngineLease,
    HeadMove,
    Model,
    PublishedVersion,
)

_GATE_OPTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "critical": tuple,
    "require_review": int,
    "by_shadow": bool,
}
"""Fields of a gate that stand in `gate_options`, each with how it is read back."""


def _columns(row: RowMapping, kind: type[Any]) -> dict[str, Any]:
    return {name: row[name] for name in kind.__slots__ if name in row}


def model_of(
    row: RowMapping, latest: PublishedVersion, gate: GateJob | None, release: CanaryRelease | None
) -> Model:
    """A row of `model` with its newest checkpoint and last move of head. gate: its newest job with one."""
    taskset = gate.gate.taskset if gate is not None and gate.gate is not None else ""
    return Model(**_columns(row, Model), latest=latest, gate_taskset=taskset, canary_release=release)


def checkpoint_of(row: RowMapping) -> Checkpoint:
    """A row of `checkpoint` joined with its model's head."""
    values = _columns(row, Checkpoint)
    values["manifest"] = BlobRef(**row["manifest"])
    values["state"] = CheckpointState(row["state"])
    values["training_state"] = BlobRef(**row["training_state"]) if row["training_state"] else None
    return Checkpoint(**values, is_head=row["checkpoint_id"] == row["head_checkpoint_id"])


def checkpoint_values(checkpoint: Checkpoint) -> dict[str, Any]:
    """Columns of a new checkpoint."""
    values = {**asdict(checkpoint), "state": checkpoint.state.value}
    del values["is_head"]
    return values


def version_of(row: RowMapping) -> PublishedVersion:
    """A row of `published_version`."""
    values = _columns(row, PublishedVersion)
    values["manifest"] = BlobRef(**row["manifest"])
    values["training_state"] = BlobRef(**row["training_state"]) if row["training_state"] else None
    return PublishedVersion(**values)


def move_of(row: RowMapping) -> HeadMove:
    """A row of `head_move`."""
    return HeadMove(**_columns(row, HeadMove))


def release_of(row: RowMapping) -> CanaryRelease:
    """A row of `canary_release`."""
    return CanaryRelease(**_columns(row, CanaryRelease))


def lease_of(row: RowMapping) -> EngineLease:
    """A row of `engine_lease`."""
    return EngineLease(**_columns(row, EngineLease))


def job_of(row: RowMapping) -> GateJob:
    """A row of `gate_job`."""
    values = _columns(row, GateJob)
    values["phase"] = JobPhase(row["phase"])
    given = row["gate_options"] or {}
    options = {name: kind(given[name]) for name, kind in _GATE_OPTIONS.items() if name in given}
    values["gate"] = GateSpec(**row["gate"], **options) if row["gate"] else None
    values["profile"] = SamplingProfile(**row["profile"]) if row["profile"] else None
    return GateJob(**values)


def job_values(job: GateJob) -> dict[str, Any]:
    """Columns of a job, without `active_for_model`."""
    values = {**asdict(job), "phase": job.phase.value}
    return values if job.gate is None else values | gate_values(job.gate)


def gate_values(gate: GateSpec) -> dict[str, Any]:
    """Columns `gate` and `gate_options`: what a registry of 0.3.0 does not read stands in the second."""
    values = asdict(gate)
    options = {name: values.pop(name) for name in _GATE_OPTIONS}
    return {"gate": values, "gate_options": options}


def evaluation_of(row: RowMapping) -> Evaluation:
    """A row of `evaluation`; a tally is stored as [family, successes, attempts, missing], by older
    versions without the last."""
    tallies = {slug: Tally(*tally) for slug, tally in row["tallies"].items()}
    return Evaluation(**{**_columns(row, Evaluation), "tallies": tallies})


def evaluation_values(evaluation: Evaluation) -> dict[str, Any]:
    """Columns of an evaluation."""
    tallies = {slug: [t.family, t.successes, t.attempts, t.missing] for slug, t in evaluation.tallies.items()}
    return {**asdict(evaluation), "tallies": tallies}
