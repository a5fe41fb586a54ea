"""Which trainer processes live, and which of them may take a model: rules over what a process observes.

No wall clock is compared. A process counts as gone when its beat did not change during enough looks of ours,
over enough time on our own monotonic clock, without a pause of ours in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

MIN_LOOKS: Final = 4
"""Looks in a row that must show the same beat before a process counts as gone: one jump of our clock, or one
pause of ours, is never enough."""
_UNLISTED_LOOKS: Final = 3
"""Looks after which a lease counts as given back if its holder, which lives, does not list the model."""


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """Where a trainer process starts: it replays the facts after a sequence of the stream, and follows the
    runs that were submitted before it and are not closed. bound: every run that was submitted up to this
    sequence has a folder in the object store, or is among the open runs. open_runs: model and id of each that
    is not closed; None where a record of version 0.3 does not say it: then the folders do."""

    bound: int = 0
    open_runs: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True, slots=True)
class TrainerRecord:
    """What a trainer process says of itself. beat: grows with each record. models: those that it holds.
    room: how many more it can hold. bound, open_runs: see StartingPoint. able: False while it cannot work, so
    that others take its models."""

    name: str
    beat: int
    address: str = ""
    models: tuple[str, ...] = ()
    room: int = 0
    bound: int = 0
    able: bool = True
    open_runs: tuple[tuple[str, str], ...] | None = None

    @property
    def starting_point(self) -> StartingPoint:
        """Where another process may start."""
        return StartingPoint(self.bound, self.open_runs)


def latest_starting_point(records: Collection[TrainerRecord]) -> StartingPoint:
    """The largest bound, and the runs that any process has as open: a record with the largest bound may be
    older than the others, if the stream was made anew. A run that was closed since is found closed."""
    points = [one.starting_point for one in records]
    if not points or any(point.open_runs is None for point in points):
        return StartingPoint(max((point.bound for point in points), default=0))
    open_runs = {run for point in points for run in point.open_runs or ()}
    return StartingPoint(max(point.bound for point in points), tuple(sorted(open_runs)))


@dataclass(frozen=True, slots=True)
class Lease:
    """The newest lease of a model. Tokens of a model only grow."""

    token: int
    holder: str


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that the trainers say, as read in one go. at: our monotonic clock before it was read."""

    at: float
    records: Mapping[str, TrainerRecord] = field(default_factory=dict)
    leases: Mapping[str, Lease] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Unchanged:
    what: object
    since: float
    looks: int = 1

    def seen(self, what: object, at: float) -> _Unchanged:
        return _Unchanged(what, self.since, self.looks + 1) if what == self.what else _Unchanged(what, at)


class Watch:
    """Keeps what the last looks of this process showed."""

    def __init__(self, own: str, lease_s: float) -> None:
        """own: name of this process. lease_s: time without a new beat after which a process is gone."""
        self.look = Look(0.0)
        self._own = own
        self._lease_s = lease_s
        self._beats: dict[str, _Unchanged] = {}
        self._leases: dict[str, _Unchanged] = {}

    def update(self, look: Look) -> None:
        """Take note of a new look. After a pause of ours every process gets its time again."""
        if look.at - self.look.at > self._lease_s / 2:
            self._beats.clear()
        self.look = look
        self._beats = _noted(self._beats, {name: one.beat for name, one in look.records.items()}, look.at)
        self._leases = _noted(self._leases, look.leases, look.at)

    def lives(self, name: str) -> bool:
        """Whether the process may still be at work."""
        seen = self._beats.get(name)
        if seen is None:
            return False
        return seen.looks < MIN_LOOKS or self.look.at - seen.since < self._lease_s

    def silent_s(self, name: str) -> float:
        """Seconds since the record of a process changed, as far as this one has looked."""
        return self.look.at - self._beats[name].since

    def holder(self, model: str) -> TrainerRecord | None:
        """The other process that holds the model; None if a process may take it."""
        lease = self.look.leases.get(model)
        if lease is None or lease.holder == self._own or not self.lives(lease.holder):
            return None
        record = self.look.records[lease.holder]
        is_listed = model in record.models or self._leases[model].looks < _UNLISTED_LOOKS
        return record if record.able and is_listed else None

    def place_in_queue(self, held: Collection[str]) -> int:
        """How many other processes should rather take a free model: those that have room and hold fewer.
        held: the models of this process."""
        mine = (len(held), self._own)
        others = [one for name, one in self.look.records.items() if name != self._own and self.lives(name)]
        return sum(one.able and one.room > 0 and (len(one.models), one.name) < mine for one in others)

    @property
    def has_room(self) -> bool:
        """Whether any other process that lives says that it can take one more model."""
        records = self.look.records.items()
        return any(one.able and one.room > 0 and self.lives(name) for name, one in records)


def _noted(before: Mapping[str, _Unchanged], now: Mapping[str, object], at: float) -> dict[str, _Unchanged]:
    return {
        name: before[name].seen(what, at) if name in before else _Unchanged(what, at)
        for name, what in now.items()
    }
