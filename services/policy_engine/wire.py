"""protobuf <-> domain."""

from datetime import datetime
from typing import Final

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from blob_store import ref as blob_ref
from engine_client import STATE_NUMBERS
from episodes import Channel
from episodes.identity import CHANNEL_NUMBERS
from policy_engine.domain import CanaryRow, EngineTarget, LeaseFacts, Reloaded, ServedPolicy, VersionRefused
from policy_files import Announcement
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import events_pb2, registry_pb2
from upcycle.api.taskset.v1.taskset_pb2 import RunSpec
from upcycle.api.training.v1.events_pb2 import PolicyPublished
from upcycle.api.training.v1.training_pb2 import PolicyManifest
from upcycle.moments import moment_of, timestamp

_MAX_DETAIL: Final = 2000


class EngineIdentity:
    """The engine whose events are published and whose lease is renewed."""

    def __init__(self, engine_id: str, model: str, channel: Channel, kind: str) -> None:
        self.engine_id = engine_id
        self.model = model
        self.channel = CHANNEL_NUMBERS[channel]
        self.kind = kind


def target_of_checkpoint(
    checkpoint: registry_pb2.Checkpoint, promoted_at: Timestamp | None = None
) -> EngineTarget:
    """A checkpoint of the registry. promoted_at: of head."""
    at = None if promoted_at is None else moment_of(promoted_at)
    return EngineTarget(checkpoint.version, checkpoint.digest, blob_ref.from_wire(checkpoint.manifest), at)


def target_of_version(published: registry_pb2.PublishedVersion) -> EngineTarget:
    """A published version of the registry."""
    at = moment_of(published.published_at)
    return EngineTarget(published.version, published.digest, blob_ref.from_wire(published.manifest), at)


def target_of_published(event: PolicyPublished, model: str) -> EngineTarget:
    """A version of `model` as the trainer announced it. Raises FalseAnnouncement when its fact contradicts
    itself, or is of another model."""
    at = moment_of(event.published_at) if event.HasField("published_at") else None
    manifest = blob_ref.from_wire(event.manifest)
    said = Announcement("policy.published", event.model, event.version, event.digest, manifest)
    said.check()
    if event.model != model:
        raise said.false(f"it is on a subject of model {model!r}")
    return EngineTarget(event.version, event.digest, manifest, at)


_NEWEST_FIELD_OF_0_3: Final = registry_pb2.EngineLease.CANARY_MAX_ABS_DIFF_FIELD_NUMBER


def canary_of(manifest: PolicyManifest) -> tuple[CanaryRow, ...]:
    """The rows by which a reload is checked."""
    return tuple(CanaryRow(tuple(row.token_ids), tuple(row.logprobs)) for row in manifest.canary)


def pinned_by(spec: RunSpec) -> tuple[int, ...]:
    """The versions that an evaluation run pins: two where versions play side by side, none in other runs."""
    if spec.purpose != common_pb2.PURPOSE_EVAL or spec.policy.WhichOneof("at") != "pinned_version":
        return ()
    against = (spec.against_version,) if spec.HasField("against_version") else ()
    return spec.policy.pinned_version, *against


def lease_to_wire(who: EngineIdentity, facts: LeaseFacts) -> registry_pb2.EngineLease:
    """What the registry lists."""
    lease = registry_pb2.EngineLease(
        engine_id=who.engine_id,
        base_url=facts.base_url,
        model=who.model,
        channel=who.channel,
        held_versions=[one.version for one in facts.beside.held if one.model == who.model],
        held_policies=[
            registry_pb2.HeldPolicy(model=one.model, version=one.version)
            for one in facts.beside.held
            if one.model != who.model
        ],
        max_held=facts.beside.max_held,
        pinned_versions=facts.beside.pinned,
        hold_failures=[
            registry_pb2.HoldFailure(model=one.model, version=one.version, detail=why[:_MAX_DETAIL])
            for one, why in facts.beside.failures.items()
        ],
        state=STATE_NUMBERS[facts.state],
        reason=facts.reason,
        engine_kind=who.kind,
    )
    if facts.serving is not None:
        target = facts.serving.policy.target
        lease.version, lease.digest = target.version, target.digest
        lease.manifest.CopyFrom(blob_ref.to_wire(target.manifest))
        lease.canary_max_abs_diff = facts.serving.canary_max_abs_diff
    return lease


def as_of_0_3(lease: registry_pb2.EngineLease) -> None:
    """Take out what a registry of 0.3.0 does not know, and therefore refuses: what is held beside the
    channel's version."""
    message: Message = lease  # whose fields have names that the stub does not enumerate
    for field in lease.DESCRIPTOR.fields:
        if field.number > _NEWEST_FIELD_OF_0_3:
            message.ClearField(field.name)


def ready_event(who: EngineIdentity, serving: ServedPolicy, now: datetime) -> events_pb2.EngineReady:
    """Fact engine.ready."""
    target = serving.policy.target
    return events_pb2.EngineReady(
        engine_id=who.engine_id,
        model=who.model,
        channel=who.channel,
        version=target.version,
        digest=target.digest,
        ready_at=timestamp(now),
    )


def reloaded_event(who: EngineIdentity, done: Reloaded, now: datetime) -> events_pb2.EngineReloaded:
    """Fact engine.reloaded."""
    target = done.serving.policy.target
    return events_pb2.EngineReloaded(
        engine_id=who.engine_id,
        model=who.model,
        channel=who.channel,
        from_version=done.from_version,
        version=target.version,
        digest=target.digest,
        canary_max_abs_diff=done.serving.canary_max_abs_diff,
        fetch_s=done.fetch_s,
        paused_s=done.paused_s,
        announced_at=None if target.announced_at is None else timestamp(target.announced_at),
        reloaded_at=timestamp(now),
    )


def failed_event(
    who: EngineIdentity, serving: ServedPolicy | None, version: int, why: VersionRefused, now: datetime
) -> events_pb2.EngineReloadFailed:
    """Fact engine.reload_failed."""
    return events_pb2.EngineReloadFailed(
        engine_id=who.engine_id,
        model=who.model,
        channel=who.channel,
        serving_version=-1 if serving is None else serving.version,
        refused_version=version,
        kind=why.kind.value,
        detail=why.detail[:_MAX_DETAIL],
        failed_at=timestamp(now),
    )
