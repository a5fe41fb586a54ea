"""The ledger: what facts say about an episode, folded into one row. The first terminal state wins, but that a
training run may take one gradient on an evaluated episode.

Pure and idempotent: folding a fact twice equals folding it once, and facts may come in any order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

TRAJECTORY_PREFIX: Final = "traj-"
PURPOSE_EVAL: Final = 2
_MAX_REASON_CHARS: Final = 64


class State(IntEnum):
    """Where an episode is; numbers as on the wire. From TRAINED on, for good, but that EVALUATED may become
    TRAINED."""

    REQUESTED = 1
    RECORDED = 2
    GRADED = 3
    TRAINED = 4
    EVALUATED = 5
    EXCLUDED = 6
    FAILED = 7
    CANCELLED = 8

    @property
    def is_terminal(self) -> bool:
        """Settled: later facts change the index, never the state."""
        return self >= State.TRAINED


@dataclass(frozen=True, slots=True)
class Identity:
    """Who an episode is, as far as a fact knows; empty or 0 where it does not."""

    episode_id: str
    run_id: str = ""
    group_id: str = ""
    member: int = 0
    model: str = ""
    purpose: int = 0
    split: int = 0
    task_slug: str = ""
    family: str = ""

    @property
    def rank(self) -> int:
        """How well a fact knows whose episode it is about.

        2: the episode's own facts, which name a purpose. 1: facts about its group. 0: a step's list of
        trajectories, which names the run that trained, and that may have drawn them from evaluations.
        """
        return 2 if self.purpose else int(bool(self.group_id))

    def completed_by(self, other: "Identity") -> "Identity":
        """This identity with its gaps filled; where both say something, the higher rank counts."""
        if self.purpose and self.task_slug:
            return self
        first, second = (other, self) if other.rank > self.rank else (self, other)
        return Identity(
            self.episode_id,
            first.run_id or second.run_id,
            first.group_id or second.group_id,
            first.member or second.member,
            first.model or second.model,
            first.purpose or second.purpose,
            first.split or second.split,
            first.task_slug or second.task_slug,
            first.family or second.family,
        )


@dataclass(frozen=True, slots=True)
class Record:
    """The stored trajectory of an episode. Moments are microseconds since 1970."""

    body_key: str
    body_sha256: str
    body_size_bytes: int
    oldest_version: int
    newest_version: int
    stop_reason: int
    num_turns: int
    num_sampled_tokens: int
    recorded_us: int
    trace_id: str = ""


@dataclass(frozen=True, slots=True)
class Reward:
    """The grade of a trajectory. `subscores`: the reward tree as it came, serialised."""

    reward: float
    success: bool
    subscores: bytes
    graded_us: int


@dataclass(frozen=True, slots=True)
class Episode:
    """One row: identity, ledger state, and what is known of the trajectory."""

    identity: Identity
    state: State
    reason: str
    step: int
    since_us: int
    """Earliest moment of any of its facts: when it was requested, once that is known."""
    updated_us: int
    """Earliest moment of the facts that brought it to its state."""
    record: Record | None = None
    grade: Reward | None = None
    trained_step: int = 0
    """Step + 1 of the first optimizer step that claimed it; 0: none did."""
    trained_by_run: str = ""
    """Training run of that step. Its own run, or one that drew it from an evaluation."""
    in_conflict: bool = False
    trained_twice: bool = False
    body_checked: bool = False
    quarantine: str = ""

    @property
    def label(self) -> str:
        """Key of the ledger's `by_state`."""
        return label_of(self.state, self.reason)


def label_of(state: State, reason: str) -> str:
    """`trained`, `excluded(zero_spread)`, `failed(timeout)`: a reason where it is one of few words."""
    name = state.name.lower()
    return f"{name}({reason})" if state in (State.EXCLUDED, State.FAILED) and reason else name


def episode_id_of(trajectory_or_episode_id: str) -> str:
    """A trajectory's id is its episode's with a prefix; both name the same row."""
    return trajectory_or_episode_id.removeprefix(TRAJECTORY_PREFIX)


@dataclass(frozen=True, slots=True)
class Fact:
    """What one event says about one episode. `state` is the state it would bring the episode to."""

    identity: Identity
    state: State
    at_us: int
    reason: str = ""
    step: int = 0
    record: Record | None = None
    grade: Reward | None = None
    trained_by_run: str = ""


def requested(identity: Identity, at_us: int) -> Fact:
    """An episode was planned."""
    return Fact(identity, State.REQUESTED, at_us)


def recorded(identity: Identity, record: Record) -> Fact:
    """Its body is stored."""
    return Fact(identity, State.RECORDED, record.recorded_us, record=record)


def graded(identity: Identity, record: Record, grade: Reward) -> Fact:
    """Its reward is known; an evaluation is settled by that."""
    state = State.EVALUATED if identity.purpose == PURPOSE_EVAL else State.GRADED
    return Fact(identity, state, grade.graded_us, record=record, grade=grade)


def settled(identity: Identity, state: State, at_us: int, *, reason: str = "") -> Fact:
    """It ended without a gradient: excluded, failed or cancelled."""
    return Fact(identity, state, at_us, reason=reason[:_MAX_REASON_CHARS])


def trained(identity: Identity, at_us: int, *, step: int, by_run: str) -> Fact:
    """An optimizer step of a training run claims it."""
    return Fact(identity, State.TRAINED, at_us, step=step, trained_by_run=by_run)


def fold(episode: Episode | None, fact: Fact) -> Episode:
    """The row after a fact."""
    if episode is None:
        return _first(fact)
    known = replace(
        episode,
        identity=episode.identity.completed_by(fact.identity),
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


def _first(fact: Fact) -> Episode:
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


def _better_record(known: Record | None, fact: Fact) -> Record | None:
    """The record as `trajectory.recorded` tells it; a grade repeats all of it but moment and trace."""
    if fact.record is None or (known is not None and fact.grade is not None):
        return known
    return fact.record


def _claimed(episode: Episode, fact: Fact) -> Episode:
    """A second, different claim (other step, or other run) breaks a promise: say so, and keep the first."""
    if fact.state is not State.TRAINED:
        return episode
    if episode.trained_step == 0:
        return replace(episode, trained_step=fact.step + 1, trained_by_run=fact.trained_by_run)
    return episode if _is_claim_of(episode, fact) else replace(episode, trained_twice=True)


def _is_claim_of(episode: Episode, fact: Fact) -> bool:
    return (episode.trained_by_run, episode.trained_step) == (fact.trained_by_run, fact.step + 1)


def _repeats_claim(episode: Episode, fact: Fact) -> bool:
    """A group's settlement and its step tell of one gradient, in either order."""
    return episode.state is State.TRAINED and fact.state is State.TRAINED and _is_claim_of(episode, fact)


def _may_follow(now: State, said: State) -> bool:
    """Forwards until it is settled; after that an evaluation may be trained on, and nothing else."""
    return said > now if not now.is_terminal else (now, said) == (State.EVALUATED, State.TRAINED)


_CONTRADICTIONS: Final = frozenset(
    {
        # A gradient was taken on an episode that did not count.
        (State.EXCLUDED, State.TRAINED),
        (State.FAILED, State.TRAINED),
        (State.CANCELLED, State.TRAINED),
        # Somebody says that a counted episode did not count. A cancellation that comes late only withdraws.
        (State.TRAINED, State.EXCLUDED),
        (State.TRAINED, State.FAILED),
        (State.EVALUATED, State.EXCLUDED),
        (State.EVALUATED, State.FAILED),
    }
)


def contradicts(settled_as: State, said: State) -> bool:
    """Whether a fact denies a terminal state, rather than coming late or again."""
    return (settled_as, said) in _CONTRADICTIONS


@dataclass(frozen=True, slots=True)
class Delta:
    """What folding changed in the counters of one run."""

    run_id: str
    by_label: Mapping[tuple[State, str], int]
    conflicts: int
    trained_twice: int


def deltas(changes: Iterable[tuple[Episode | None, Episode]]) -> list[Delta]:
    """Counter changes, per run, of rows that went from before to after.

    A row whose own run becomes known moves to that run's counters, its alarms with it.
    """
    labels: dict[str, dict[tuple[State, str], int]] = {}
    alarms: dict[str, list[int]] = {}
    for before, after in changes:
        for row, sign in ((before, -1), (after, 1)):
            if row is None:
                continue
            counts = labels.setdefault(row.identity.run_id, {})
            counts[_key(row)] = counts.get(_key(row), 0) + sign
            alarm = alarms.setdefault(row.identity.run_id, [0, 0])
            alarm[0] += sign * row.in_conflict
            alarm[1] += sign * row.trained_twice
    return [
        Delta(run_id, {key: count for key, count in counts.items() if count}, *alarms[run_id])
        for run_id, counts in labels.items()
    ]


def _key(episode: Episode) -> tuple[State, str]:
    reason = episode.reason if episode.state in (State.EXCLUDED, State.FAILED) else ""
    return episode.state, reason


@dataclass(frozen=True, slots=True)
class Ledger:
    """The conservation equation of one run, or of all: requested = settled + in flight."""

    counts: Mapping[tuple[State, str], int]
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


@dataclass(frozen=True, slots=True)
class Filter:
    """Which trajectories; None and empty mean any."""

    run_id: str = ""
    model: str = ""
    group_id: str = ""
    task_slug: str = ""
    purpose: int = 0
    min_reward: float | None = None
    success: bool | None = None
    state: State | None = None


@dataclass(frozen=True, slots=True)
class PageKey:
    """Where a page ended: newest first, ties by id."""

    recorded_us: int
    episode_id: str
