"""The ledger: facts about an episode, folded into one row. The first terminal state wins, except that a
training run may take one gradient on an evaluated episode.

Pure and idempotent: folding a fact twice equals folding it once, and facts may come in any order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from identities.entities import is_recorded_run
from trajectory_store.domain.facts import (
    EpisodeFact,
    Identity,
    LedgerState,
    TrajectoryGrade,
    TrajectoryRecord,
    better_identity,
    with_labels_of,
)


@dataclass(frozen=True, slots=True)
class Episode:
    """One row: identity, ledger state, and what is known of the trajectory."""

    identity: Identity
    state: LedgerState
    reason: str
    step: int
    since_us: int
    """Earliest moment of any of its facts: when it was requested, once that is known."""
    updated_us: int
    """Earliest moment of the facts that brought it to its state."""
    record: TrajectoryRecord | None = None
    grade: TrajectoryGrade | None = None
    trained_step: int = 0
    """Step + 1 of the first optimizer step that claimed it; 0: none did."""
    trained_by_run: str = ""
    """Training run of that step. Its own run, or one that drew it from an evaluation."""
    in_conflict: bool = False
    trained_twice: bool = False
    body_checked: bool = False
    quarantine: str = ""
    body_removed_us: int | None = None
    """When retention decided that the body goes; the object is gone soon after."""
    body_removed_why: str = ""
    body_deleted: bool = False
    """The object of a removed body is gone."""

    @property
    def label(self) -> str:
        """Key of the ledger's `by_state`."""
        return label_of(self.state, self.reason)


def label_of(state: LedgerState, reason: str) -> str:
    """`trained`, `excluded(zero_spread)`, `failed(timeout)`: a reason where it is one of few words."""
    name = state.name.lower()
    return f"{name}({reason})" if state in (LedgerState.EXCLUDED, LedgerState.FAILED) and reason else name


def fold(episode: Episode | None, fact: EpisodeFact) -> Episode:
    """The row after a fact."""
    if episode is None:
        return _first(fact)
    if episode.state is LedgerState.CLIENT_GRADED:  # interactive steps may train it any number of times
        return episode if episode.trained_step else _claimed(episode, fact)
    known = replace(
        episode,
        identity=_identity_after(episode, fact),
        since_us=min(episode.since_us, fact.at_us),
        record=_better_record(episode.record, fact),
        grade=episode.grade or fact.grade,
    )
    known = _claimed(known, fact)
    if _may_follow(episode.state, fact.state):
        return replace(known, state=fact.state, reason=fact.reason, step=fact.step, updated_us=fact.at_us)
    if _repeats_claim(known, fact):
        return replace(known, updated_us=min(known.updated_us, fact.at_us))
    if contradicts(episode.state, fact.state):
        return replace(known, in_conflict=True)
    return known


def _identity_after(episode: Episode, fact: EpisodeFact) -> Identity:
    """Only the grade of a recorded session says which group and split it is of. Its labels are those of any
    fact: while gateways are upgraded, one of the version before may tell of it, without them."""
    if fact.grade is not None and episode.grade is None and is_recorded_run(fact.identity.run_id):
        return with_labels_of(episode.identity, fact.identity)
    return with_labels_of(fact.identity, better_identity(episode.identity, fact.identity))


def _first(fact: EpisodeFact) -> Episode:
    row = Episode(
        identity=fact.identity,
        state=fact.state,
        reason=fact.reason,
        step=fact.step,
        since_us=fact.at_us,
        updated_us=fact.at_us,
        record=fact.record,
        grade=fact.grade,
    )
    return _claimed(row, fact)


def _better_record(known: TrajectoryRecord | None, fact: EpisodeFact) -> TrajectoryRecord | None:
    """The record of `trajectory.recorded`; `trajectory.graded` repeats all of it but its moment and trace."""
    if fact.record is None or (known is not None and fact.grade is not None):
        return known
    return fact.record


def _claimed(episode: Episode, fact: EpisodeFact) -> Episode:
    """A second, different claim (other step, or other run) breaks a promise: the row keeps the first."""
    if fact.state is not LedgerState.TRAINED:
        return episode
    if episode.trained_step == 0:
        return replace(episode, trained_step=fact.step + 1, trained_by_run=fact.trained_by_run)
    return episode if _is_claim_of(episode, fact) else replace(episode, trained_twice=True)


def _is_claim_of(episode: Episode, fact: EpisodeFact) -> bool:
    return (episode.trained_by_run, episode.trained_step) == (fact.trained_by_run, fact.step + 1)


def _repeats_claim(episode: Episode, fact: EpisodeFact) -> bool:
    """`group.settled` and `step.completed` report the same gradient, in either order."""
    both_trained = episode.state is LedgerState.TRAINED and fact.state is LedgerState.TRAINED
    return both_trained and _is_claim_of(episode, fact)


def _may_follow(now: LedgerState, reported: LedgerState) -> bool:
    """Forwards until it is settled; after that an evaluation may be trained on, and nothing else."""
    if not now.is_terminal:
        return reported > now
    return (now, reported) == (LedgerState.EVALUATED, LedgerState.TRAINED)


_CONTRADICTIONS: Final = frozenset(
    {
        # A gradient was taken on an episode that did not count.
        (LedgerState.EXCLUDED, LedgerState.TRAINED),
        (LedgerState.FAILED, LedgerState.TRAINED),
        (LedgerState.CANCELLED, LedgerState.TRAINED),
        # A fact reports that a counted episode did not count. A late cancellation is no contradiction.
        (LedgerState.TRAINED, LedgerState.EXCLUDED),
        (LedgerState.TRAINED, LedgerState.FAILED),
        (LedgerState.EVALUATED, LedgerState.EXCLUDED),
        (LedgerState.EVALUATED, LedgerState.FAILED),
    }
)


def contradicts(settled_as: LedgerState, reported: LedgerState) -> bool:
    """Whether a fact denies a terminal state, rather than coming late or again."""
    return (settled_as, reported) in _CONTRADICTIONS


@dataclass(frozen=True, slots=True)
class CounterDelta:
    """What folding changed in the counters of one run."""

    tenant: str
    run_id: str
    by_label: Mapping[tuple[LedgerState, str], int]
    conflicts: int
    trained_twice: int


def deltas(changes: Iterable[tuple[Episode | None, Episode]]) -> list[CounterDelta]:
    """Counter changes, per run, of rows that went from before to after.

    A row whose own run becomes known moves to that run's counters, its alarms with it.
    """
    labels: dict[tuple[str, str], dict[tuple[LedgerState, str], int]] = {}
    alarms: dict[tuple[str, str], list[int]] = {}
    for before, after in changes:
        for row, sign in ((before, -1), (after, 1)):
            if row is None:
                continue
            run = (row.identity.tenant, row.identity.run_id)
            counts = labels.setdefault(run, {})
            counts[_key(row)] = counts.get(_key(row), 0) + sign
            alarm = alarms.setdefault(run, [0, 0])
            alarm[0] += sign * row.in_conflict
            alarm[1] += sign * row.trained_twice
    return [
        CounterDelta(*run, {key: count for key, count in counts.items() if count}, *alarms[run])
        for run, counts in labels.items()
    ]


def _key(episode: Episode) -> tuple[LedgerState, str]:
    reason = episode.reason if episode.state in (LedgerState.EXCLUDED, LedgerState.FAILED) else ""
    return episode.state, reason


@dataclass(frozen=True, slots=True)
class Ledger:
    """The conservation equation of one run, or of all: requested = settled + in flight."""

    counts: Mapping[tuple[LedgerState, str], int]
    conflicts: int
    trained_twice: int
    oldest_unsettled_us: int | None
    unsettled: tuple[Episode, ...] = ()

    @property
    def requested(self) -> int:
        """Every episode ever asked for."""
        return sum(self.counts.values())

    @property
    def settled(self) -> int:
        """Those in a terminal state."""
        return sum(count for (state, _), count in self.counts.items() if state.is_terminal)

    @property
    def in_flight(self) -> int:
        """Those that are not."""
        return self.requested - self.settled

    @property
    def by_label(self) -> dict[str, int]:
        """Counts by state and reason, zeros left out."""
        return {label_of(state, reason): count for (state, reason), count in self.counts.items() if count}
