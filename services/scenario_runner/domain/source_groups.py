"""Groups of evaluations that a training run may train on: plain records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from episodes import GroupReason


class SourceGroupState(StrEnum):
    """What became of an evaluation's group in a training run. WAITING: until the run may open another group.
    LEFT_OUT: it did not fit and was never offered. RELEASED: offered, and not trained."""

    WAITING = "waiting"
    OFFERED = "offered"
    TRAINED = "trained"
    RELEASED = "released"
    LEFT_OUT = "left_out"


TAKEN = frozenset({SourceGroupState.OFFERED, SourceGroupState.TRAINED})
"""A group is in one of these states for at most one run."""

WITHOUT_SIGNAL = frozenset({GroupReason.ZERO_SPREAD, GroupReason.UNTRAINABLE})
"""Reasons that count towards `no_step_groups`: the group fitted the run, but had no gradient. A group that is
released for any other reason does not fit the run, which says nothing about what the run can learn."""


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """One group of an evaluation, as far as one training run is concerned. step: that it trained in; of a
    released one, and of proposals that could not be measured, the newest step that the run had completed by
    then."""

    group_id: str
    run_id: str
    source_run_id: str
    state: SourceGroupState
    ended_at: datetime
    """When the evaluation was done with it; groups are offered in this order."""
    reason: str = ""
    step: int = 0
    offered_at: datetime | None = None
    settled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SourceLoad:
    """What a training run has of evaluations now. offered: groups with the trainer."""

    offered: int = 0
    is_waiting: bool = False
    oldest_offer: datetime | None = None


NO_SOURCES = SourceLoad()


@dataclass(frozen=True, slots=True)
class SourceTally:
    """How many groups of one evaluation are in one state for one reason."""

    source_run_id: str
    state: SourceGroupState
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

    groups = offered + trained + waiting + everything in left_out, which counts released groups as well.
    single: recorded sessions among them that may train without others, against the mean of their step."""

    run_id: str
    groups: int = 0
    offered: int = 0
    trained: int = 0
    waiting: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    single: int = 0
