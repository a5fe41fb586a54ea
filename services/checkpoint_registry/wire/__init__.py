"""protobuf <-> domain, nothing else."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from google.protobuf import json_format

from blob_store import ref as blob_ref
from checkpoint_registry.domain.holds import EngineRoom, HoldRequest, PolicyHold
from checkpoint_registry.domain.jobs import Judgement
from checkpoint_registry.domain.models import (
    CanaryRelease,
    Checkpoint,
    CheckpointState,
    EngineLease,
    HeadMove,
    LeaseRequest,
    Model,
    PublishedVersion,
)
from identities import entities
from identities.objects import PolicyFolder
from policy_files import Announcement
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import events_pb2, registry_pb2, service_pb2
from upcycle.api.training.v1 import events_pb2 as training_events_pb2
from upcycle.gate.decision import Decision
from upcycle.gate.families import FamilyRisk
from upcycle.moments import moment_of, timestamp

_STATES: Mapping[CheckpointState, registry_pb2.CheckpointState.ValueType] = {
    CheckpointState.BASE: registry_pb2.CHECKPOINT_STATE_BASE,
    CheckpointState.CANDIDATE: registry_pb2.CHECKPOINT_STATE_CANDIDATE,
    CheckpointState.EVALUATING: registry_pb2.CHECKPOINT_STATE_EVALUATING,
    CheckpointState.PROMOTED: registry_pb2.CHECKPOINT_STATE_PROMOTED,
    CheckpointState.HELD: registry_pb2.CHECKPOINT_STATE_HELD,
}


def model_to_wire(model: Model) -> registry_pb2.Model:
    """Model to protobuf."""
    return registry_pb2.Model(
        canary_release=release_to_wire(model.canary_release) if model.canary_release else None,
        model=model.model,
        forked_from_checkpoint_id=model.forked_from_checkpoint_id,
        head_version=model.head_version,
        head_checkpoint_id=model.head_checkpoint_id,
        head_revision=model.head_revision,
        newest_version=model.newest_version,
        created_at=timestamp(model.created_at),
        latest=version_to_wire(model.latest),
        promoted_at=timestamp(model.promoted_at),
        gate_taskset=model.gate_taskset,
        head_set_revision=model.head_set_revision,
    )


def version_to_wire(published: PublishedVersion) -> registry_pb2.PublishedVersion:
    """Published version to protobuf."""
    message = registry_pb2.PublishedVersion(
        version=published.version,
        digest=published.digest,
        manifest=blob_ref.to_wire(published.manifest),
        published_at=timestamp(published.published_at),
        run_id=published.run_id,
        step=published.step,
    )
    if published.training_state is not None:
        message.training_state.CopyFrom(blob_ref.to_wire(published.training_state))
    return message


def announcement(
    event: training_events_pb2.PolicyPublished | training_events_pb2.CheckpointSaved,
) -> Announcement:
    """What the fact says about its version."""
    is_published = isinstance(event, training_events_pb2.PolicyPublished)
    fact = "policy.published" if is_published else "checkpoint.saved"
    return Announcement(fact, event.model, event.version, event.digest, blob_ref.from_wire(event.manifest))


def version_from_wire(event: training_events_pb2.PolicyPublished) -> PublishedVersion:
    """A published version. Raises FalseAnnouncement when its fact contradicts itself."""
    announcement(event).check()
    return PublishedVersion(
        model=event.model,
        version=event.version,
        digest=event.digest,
        manifest=blob_ref.from_wire(event.manifest),
        run_id=event.run_id,
        step=event.step,
        published_at=moment_of(event.published_at),
        training_state=blob_ref.from_wire(event.training_state) if event.HasField("training_state") else None,
    )


def checkpoint_to_wire(checkpoint: Checkpoint) -> registry_pb2.Checkpoint:
    """Checkpoint to protobuf."""
    message = registry_pb2.Checkpoint(
        checkpoint_id=checkpoint.checkpoint_id,
        model=checkpoint.model,
        version=checkpoint.version,
        parent_checkpoint_id=checkpoint.parent_checkpoint_id,
        digest=checkpoint.digest,
        manifest=blob_ref.to_wire(checkpoint.manifest),
        state=_STATES[checkpoint.state],
        run_id=checkpoint.run_id,
        step=checkpoint.step,
        reason=checkpoint.reason,
        metrics=dict(checkpoint.metrics),
        sources=dict(checkpoint.sources),
        created_at=timestamp(checkpoint.created_at),
        is_head=checkpoint.is_head,
    )
    if checkpoint.training_state is not None:
        message.training_state.CopyFrom(blob_ref.to_wire(checkpoint.training_state))
    if checkpoint.gate_json:
        json_format.Parse(checkpoint.gate_json, message.gate)
    return message


def move_to_wire(move: HeadMove) -> registry_pb2.HeadMove:
    """Audit line to protobuf."""
    return registry_pb2.HeadMove(**{**asdict(move), "moved_at": timestamp(move.moved_at)})


def release_to_wire(release: CanaryRelease) -> registry_pb2.CanaryRelease:
    """A line of the audit of canary releases."""
    return registry_pb2.CanaryRelease(**{**asdict(release), "changed_at": timestamp(release.changed_at)})


def release_changed(release: CanaryRelease) -> events_pb2.CanaryReleaseChanged:
    """The fact about it."""
    return events_pb2.CanaryReleaseChanged(release=release_to_wire(release))


def candidate_from_wire(event: training_events_pb2.CheckpointSaved) -> Checkpoint:
    """A saved checkpoint. Raises FalseAnnouncement when it contradicts itself."""
    said = announcement(event)
    said.check()
    expected = entities.checkpoint_id(event.model, event.version)
    if event.checkpoint_id != expected:
        raise said.false(f"it names {event.checkpoint_id!r}, model and version say {expected!r}")
    return Checkpoint(
        checkpoint_id=event.checkpoint_id,
        model=event.model,
        version=event.version,
        parent_checkpoint_id=event.parent_checkpoint_id,
        digest=event.digest,
        manifest=blob_ref.from_wire(event.manifest),
        state=CheckpointState.CANDIDATE,
        created_at=moment_of(event.saved_at),
        training_state=blob_ref.from_wire(event.training_state) if event.HasField("training_state") else None,
        run_id=event.run_id,
        step=event.step,
        metrics=dict(event.metrics.values),
        sources=dict(event.sources),
    )


def lease_from_wire(lease: registry_pb2.EngineLease, ttl_s: float) -> LeaseRequest:
    """An engine supervisor's request; the message itself is kept for those who look engines up."""
    return LeaseRequest(
        engine_id=lease.engine_id,
        base_url=lease.base_url,
        model=lease.model,
        channel=int(lease.channel),
        ttl_s=ttl_s,
        body=lease.SerializeToString(deterministic=True),
    )


def lease_to_wire(lease: EngineLease) -> registry_pb2.EngineLease:
    """The engine supervisor's message with the registry's expiry."""
    message = registry_pb2.EngineLease.FromString(lease.body)
    message.expires_at.CopyFrom(timestamp(lease.expires_at))
    return message


def room_of(lease: EngineLease, base: str) -> EngineRoom:
    """What an engine can serve beside its channel's version. base: of its model."""
    message = registry_pb2.EngineLease.FromString(lease.body)
    return EngineRoom(
        engine_id=lease.engine_id,
        base=base,
        follows_head=message.channel == common_pb2.CHANNEL_HEAD,
        max_held=message.max_held,
        pinned=frozenset(PolicyFolder(lease.model, version) for version in message.pinned_versions),
    )


def hold_to_wire(hold: PolicyHold) -> registry_pb2.PolicyHold:
    """A hold."""
    return registry_pb2.PolicyHold(**{**asdict(hold), "expires_at": timestamp(hold.expires_at)})


def hold_from_wire(request: service_pb2.HoldPolicyRequest, holder: str) -> HoldRequest:
    """What is asked for. holder: as it is kept."""
    version = request.version if request.HasField("version") else None
    return HoldRequest(request.model, version, request.ttl_s, holder)


def report_to_wire(judgement: Judgement) -> registry_pb2.GateReport:
    """What the gate saw and said."""
    decision, last = judgement.decision, judgement.run_ids[-1] if judgement.run_ids else ""
    report = registry_pb2.GateReport(
        candidate_checkpoint_id=judgement.candidate_checkpoint_id,
        head_checkpoint_id=judgement.head_checkpoint_id,
        taskset=judgement.gate.taskset,
        taskset_digest=judgement.taskset_digest,
        candidate_run_id=last,
        head_run_id=last,
        run_ids=judgement.run_ids,
        attempts=decision.attempts,
        passed=judgement.is_passed,
        reason=judgement.reason,
        verdict=decision.verdict.value,
        ground=decision.ground.value,
        level=decision.level,
        confidence=judgement.gate.confidence,
        regression_margin=judgement.gate.regression_margin,
        min_gain=judgement.gate.min_gain,
        played=decision.played,
        missing=decision.missing,
        unproven=decision.unproven,
        families=[_family_to_wire(family) for family in decision.families],
    )
    _add_gains(report, decision)
    if decision.needed is not None:
        report.needed_tasks = decision.needed.tasks or 0
        report.needed_attempts = decision.needed.attempts or 0
    return report


def _add_gains(report: registry_pb2.GateReport, decision: Decision) -> None:
    if (gain := decision.gain) is not None:
        report.num_tasks = gain.num_tasks
        report.candidate_rate, report.head_rate = gain.rate, gain.other_rate
        report.pooled_lower_bound, report.pooled_upper_bound = gain.lower, gain.upper
        report.exact_p_value, report.look_level = gain.p, gain.level
    if (base := decision.base) is not None:
        report.base_rate, report.base_lower_bound = base.other_rate, base.lower


def _family_to_wire(family: FamilyRisk) -> registry_pb2.FamilyReport:
    return registry_pb2.FamilyReport(
        family=family.family,
        num_tasks=family.num_tasks,
        difference=family.mean,
        margin=family.margin,
        risk=family.risk,
        against=family.against,
        passed=family.is_proven,
    )


def evaluated(checkpoint: Checkpoint, judgement: Judgement, at: datetime) -> events_pb2.CheckpointEvaluated:
    """The fact that a judgement was made."""
    return events_pb2.CheckpointEvaluated(
        checkpoint_id=checkpoint.checkpoint_id,
        model=checkpoint.model,
        version=checkpoint.version,
        report=report_to_wire(judgement),
        evaluated_at=timestamp(at),
    )


def held(checkpoint: Checkpoint, reason: str, at: datetime, verdict: str = "") -> events_pb2.CheckpointHeld:
    """The fact that a candidate stays one. verdict: of the judgement, if it was judged."""
    return events_pb2.CheckpointHeld(
        checkpoint_id=checkpoint.checkpoint_id,
        model=checkpoint.model,
        version=checkpoint.version,
        reason=reason,
        verdict=verdict,
        held_at=timestamp(at),
    )


def head_moved(
    checkpoint: Checkpoint, move: HeadMove
) -> events_pb2.CheckpointPromoted | events_pb2.CheckpointRolledBack:
    """The fact that head moved: promoted when forward in version, else rolled back."""
    moved_at = timestamp(move.moved_at)
    facts: dict[str, Any] = {
        "checkpoint_id": checkpoint.checkpoint_id,
        "model": checkpoint.model,
        "version": checkpoint.version,
        "digest": checkpoint.digest,
        "manifest": blob_ref.to_wire(checkpoint.manifest),
        "head_revision": move.revision,
        "previous_checkpoint_id": move.from_checkpoint_id,
        "actor": move.actor,
        "reason": move.reason,
    }
    if move.is_forward:
        return events_pb2.CheckpointPromoted(promoted_at=moved_at, **facts)
    return events_pb2.CheckpointRolledBack(rolled_back_at=moved_at, **facts)
