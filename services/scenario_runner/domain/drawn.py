"""What a training run draws from evaluations: plain records, known to every other module of the domain."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """Where a trajectory's body is stored, and how to prove that it is the right one."""

    key: str
    sha256: str
    size_bytes: int


class DrawState(StrEnum):
    """What became of an evaluation's group in a training run. WAITING: it may be offered when a slot is free.
    LEFT_OUT: it did not fit and was never offered. RELEASED: offered, and not trained."""

    WAITING = "waiting"
    OFFERED = "offered"
    TRAINED = "trained"
    RELEASED = "released"
    LEFT_OUT = "left_out"


TAKEN = frozenset({DrawState.OFFERED, DrawState.TRAINED})
"""A group is in one of these states for at most one run."""

TAUGHT_NOTHING = frozenset({"zero_spread", "untrainable"})
"""Why groups are released that a run had nothing to learn from. Any other reason says that a group does not
fit the run, and nothing about what the run can learn."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One group of an evaluation, as far as one training run is concerned. step: that it trained in; of a
    released one the newest step that the run had completed by then."""

    group_id: str
    run_id: str
    source_run_id: str
    state: DrawState
    ended_at: datetime
    """When the evaluation was done with it; groups are offered in this order."""
    reason: str = ""
    step: int = 0
    offered_at: datetime | None = None
    settled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class DrawLoad:
    """What a training run has of evaluations now. offered: groups with the trainer."""

    offered: int = 0
    is_waiting: bool = False
    oldest_offer: datetime | None = None


NOTHING_DRAWN = DrawLoad()


@dataclass(frozen=True, slots=True)
class DrawTally:
    """How many groups of one evaluation are in one state for one reason."""

    source_run_id: str
    state: DrawState
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class EndedGroup:
    """A group that an evaluation is done with. Members are those with a reward; oldest, newest: versions that
    sampled them."""

    group_id: str
    ended_at: datetime
    outcome: str
    num_members: int
    num_without_body: int = 0
    oldest: int = 0
    newest: int = 0
    has_spread: bool = True
    """Their rewards differ, so that there is something to learn."""


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What a training run took from one evaluation, in groups.

    groups = offered + trained + waiting + everything in left_out, which counts released groups as well."""

    run_id: str
    groups: int = 0
    offered: int = 0
    trained: int = 0
    waiting: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
