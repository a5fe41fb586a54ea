"""Models, checkpoints, heads and engine leases as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from blob_store import BlobRef
from identities.entities import SLUG, SLUG_RULE, parse_checkpoint_id
from service_kit.errors import InvalidRequest

# Longest lease. With a longer one, requests would be routed to a dead engine for too long.
MAX_LEASE_TTL_S = 60.0
MAX_ACTOR: Final = 64


class CheckpointState(StrEnum):
    """Where a checkpoint stands with the gate."""

    BASE = "base"
    CANDIDATE = "candidate"
    EVALUATING = "evaluating"
    PROMOTED = "promoted"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Model:
    """A named line of weights."""

    model: str
    forked_from_checkpoint_id: str
    head_checkpoint_id: str
    head_version: int
    head_revision: int
    newest_version: int
    """Newest checkpoint of the tree."""
    latest: "PublishedVersion"
    """Highest version that was published and not removed."""
    promoted_at: datetime
    """When head moved to where it is."""
    created_at: datetime
    head_set_revision: int
    """Revision of the last move of head that the gate did not make."""
    gate_taskset: str
    """Held-out taskset of the newest gate that a run of the model asked for; empty: none did."""
    canary_release: "CanaryRelease | None"
    """The one that is under way."""


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version as an engine can fetch it; not every one is a checkpoint."""

    model: str
    version: int
    digest: str
    manifest: BlobRef
    run_id: str
    step: int
    published_at: datetime
    training_state: BlobRef | None = None
    """Marker of the trainer's state that was saved with it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One immutable set of weights in a model's tree."""

    checkpoint_id: str
    model: str
    version: int
    parent_checkpoint_id: str
    digest: str
    manifest: BlobRef
    state: CheckpointState
    created_at: datetime
    training_state: BlobRef | None = None
    run_id: str = ""
    step: int = 0
    reason: str = ""
    gate_json: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)
    """Evaluations that its run trained on until then: run id -> groups."""
    is_head: bool = False

    @property
    def published(self) -> PublishedVersion:
        """The same version as an engine fetches it."""
        return PublishedVersion(
            self.model,
            self.version,
            self.digest,
            self.manifest,
            self.run_id,
            self.step,
            self.created_at,
            self.training_state,
        )


@dataclass(frozen=True, slots=True)
class HeadMove:
    """One line of the audit: head of `model` moved, as its `revision`-th state."""

    model: str
    revision: int
    from_checkpoint_id: str
    to_checkpoint_id: str
    actor: str
    reason: str
    moved_at: datetime

    @property
    def is_forward(self) -> bool:
        """Whether head moved to a newer version. Ids do not sort as versions do from version 10^8 on."""
        before, after = map(parse_checkpoint_id, (self.from_checkpoint_id, self.to_checkpoint_id))
        return after is not None and (before is None or after.version > before.version)


@dataclass(frozen=True, slots=True)
class CanaryRelease:
    """One line of the audit of canary releases: from then on the checkpoint answers this share of the
    model's conversations, and unseen this share of the requests that head answers; both 0: it ended."""

    model: str
    revision: int
    checkpoint_id: str
    version: int
    share: float
    actor: str
    reason: str
    changed_at: datetime
    shadow_share: float = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether the checkpoint answers anything."""
        return self.share > 0 or self.shadow_share > 0

    def of_version(self, version: int) -> "CanaryRelease":
        """The same, with the version of its checkpoint."""
        return replace(self, version=version)


@dataclass(frozen=True, slots=True)
class EngineLease:
    """`body` is the message as the engine supervisor sent it, `expires_at` is the registry's."""

    engine_id: str
    model: str
    channel: int
    body: bytes
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What an engine supervisor asks for; `body` is kept as it is for those who look engines up."""

    engine_id: str
    base_url: str
    model: str
    channel: int
    ttl_s: float
    body: bytes


def validate_author(actor: str, reason: str, deed: str) -> None:
    """Raises InvalidRequest. deed: what the actor does."""
    if not actor.strip() or not reason.strip():
        raise InvalidRequest(f"actor and reason must say who {deed} and why; the audit keeps both")
    if len(actor) > MAX_ACTOR:
        raise InvalidRequest(f"actor has {len(actor)} characters; at most {MAX_ACTOR} are kept")


def validate_slug(model: str) -> str:
    """The slug itself; raises InvalidRequest when it cannot be part of a key, a subject and a model name."""
    if not SLUG.fullmatch(model):
        raise InvalidRequest(f"model {model!r} is not a slug: {SLUG_RULE}")
    return model
