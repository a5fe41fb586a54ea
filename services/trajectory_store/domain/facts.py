"""What one event says about one episode."""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from blob_store import BlobRef
from episodes import EpisodeIdentity, Purpose
from identities.tenants import OWN_TENANT

_MAX_REASON_CHARS: Final = 64


class LedgerState(IntEnum):
    """Where an episode is; numbers as on the wire. From TRAINED on it is settled; only EVALUATED may
    still become TRAINED. CLIENT_GRADED: a client played it, so no ledger counts it, and it stays that."""

    REQUESTED = 1
    RECORDED = 2
    GRADED = 3
    TRAINED = 4
    EVALUATED = 5
    EXCLUDED = 6
    FAILED = 7
    CANCELLED = 8
    CLIENT_GRADED = 9

    @property
    def is_terminal(self) -> bool:
        """Settled: later facts change the index, not the state (but see EVALUATED)."""
        return self >= LedgerState.TRAINED


@dataclass(frozen=True, slots=True)
class PartialIdentity:
    """What a fact about a group, or about a step, knows of an episode."""

    episode_id: str
    run_id: str
    """Of a step: the run that trained, which may have drawn the episode from an evaluation."""
    model: str
    group_id: str = ""
    """Empty where only a step names the episode."""
    tenant: str = OWN_TENANT


Identity = EpisodeIdentity | PartialIdentity


def better_identity(known: Identity, other: Identity) -> Identity:
    """The one that knows more of the two: the episode's own before its group's before a step's."""
    return other if _rank(other) > _rank(known) else known


def with_labels_of(other: Identity, identity: Identity) -> Identity:
    """The identity, with the labels of the other where it has none."""
    if isinstance(identity, EpisodeIdentity) and isinstance(other, EpisodeIdentity) and not identity.labels:
        return replace(identity, labels=other.labels)
    return identity


def _rank(identity: Identity) -> int:
    return 2 if isinstance(identity, EpisodeIdentity) else int(bool(identity.group_id))


def is_guided(identity: Identity) -> bool:
    """Whether its policy was told what to do: that is for training, and evidence of nothing."""
    return isinstance(identity, EpisodeIdentity) and bool(identity.guided_after)


@dataclass(frozen=True, slots=True)
class TrajectoryRecord:
    """The stored trajectory of an episode. Moments are microseconds since 1970."""

    body: BlobRef
    oldest_version: int
    newest_version: int
    stop_reason: int
    num_turns: int
    num_sampled_tokens: int
    recorded_us: int
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class TrajectoryGrade:
    """The grade of a trajectory. subscores: the reward tree, and the policy's
    failure if there is one, as they came, serialised."""

    reward: float
    success: bool
    subscores: bytes
    graded_us: int


@dataclass(frozen=True, slots=True)
class EpisodeFact:
    """What one event says about one episode. state: the state that it would bring the episode to."""

    identity: Identity
    state: LedgerState
    at_us: int
    reason: str = ""
    step: int = 0
    record: TrajectoryRecord | None = None
    grade: TrajectoryGrade | None = None
    trained_by_run: str = ""


def requested(identity: EpisodeIdentity, at_us: int) -> EpisodeFact:
    """An episode was planned."""
    return EpisodeFact(identity, LedgerState.REQUESTED, at_us)


def recorded(identity: EpisodeIdentity, record: TrajectoryRecord) -> EpisodeFact:
    """Its body is stored."""
    return EpisodeFact(identity, LedgerState.RECORDED, record.recorded_us, record=record)


def graded(identity: EpisodeIdentity, record: TrajectoryRecord, grade: TrajectoryGrade) -> EpisodeFact:
    """Its reward is known; that settles an evaluation."""
    state = LedgerState.EVALUATED if identity.purpose is Purpose.EVAL else LedgerState.GRADED
    return EpisodeFact(identity, state, grade.graded_us, record=record, grade=grade)


def settled(identity: Identity, state: LedgerState, at_us: int, *, reason: str = "") -> EpisodeFact:
    """It ended without a gradient: excluded, failed or cancelled."""
    return EpisodeFact(identity, state, at_us, reason=reason[:_MAX_REASON_CHARS])


def trained(identity: Identity, at_us: int, *, step: int, by_run: str) -> EpisodeFact:
    """An optimizer step of a training run claims it."""
    return EpisodeFact(identity, LedgerState.TRAINED, at_us, step=step, trained_by_run=by_run)
