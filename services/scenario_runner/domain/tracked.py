"""What versions of a training run did on held-out sets that it is followed on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from upcycle.run_config import RunSpec
from upcycle.statistics.intervals import TaskTotal
from upcycle.tracking import TWO_DROPS, TrackedPoint, fell_twice, parse_tracked, reward_alone


class TrackedState(StrEnum):
    """DUE: the version is there, its evaluation not begun. SKIPPED: a newer version was due first."""

    DUE = "due"
    PLAYING = "playing"
    PLAYED = "played"
    SKIPPED = "skipped"
    FAILED = "failed"


OPEN_STATES = frozenset({TrackedState.DUE, TrackedState.PLAYING})


@dataclass(frozen=True, slots=True)
class TrackedRow:
    """One version on one set. reward, num_trained: mean training reward of the step, and of how many
    episodes. drift: from the base, nats per token; None: not measured. outcomes: family, successes and
    attempts by task, once it was played. engine_s: that its evaluation took."""

    run_id: str
    taskset: str
    step: int
    version: int
    noted_at: datetime
    state: TrackedState = TrackedState.DUE
    eval_run_id: str = ""
    detail: str = ""
    reward: float = 0.0
    num_trained: int = 0
    drift: float | None = None
    engine_s: float = 0.0
    outcomes: Mapping[str, tuple[str, int, int]] = field(default_factory=dict)

    @property
    def point(self) -> TrackedPoint:
        """For what is decided about it."""
        return TrackedPoint(
            self.step,
            self.version,
            {task: TaskTotal(won, attempts) for task, (_, won, attempts) in self.outcomes.items()},
            {task: family for task, (family, _, _) in self.outcomes.items()},
            self.reward,
            self.num_trained,
        )


def due_sets(spec: RunSpec, step: int) -> list[str]:
    """The sets of a run on which the version of this step is to be measured."""
    tracked = [parse_tracked(text) for text in spec.track]
    return [one.taskset for one in tracked if step and step % one.every == 0]


def by_set(rows: Iterable[TrackedRow]) -> dict[str, list[TrackedRow]]:
    """What was played, oldest step first."""
    found: dict[str, list[TrackedRow]] = {}
    for row in sorted(rows, key=lambda one: one.step):
        if row.state is TrackedState.PLAYED and row.outcomes:
            found.setdefault(row.taskset, []).append(row)
    return found


def fallen(spec: RunSpec, rows: Iterable[TrackedRow]) -> Sequence[TrackedRow]:
    """The three points of a set by which the run ends; empty where it does not."""
    if spec.stop_on != TWO_DROPS:
        return ()
    for played in by_set(rows).values():
        if fall := fell_twice([row.point for row in played]):
            steps = {point.step for point in fall}
            return [row for row in played if row.step in steps]
    return ()


def alarms(rows: Iterable[TrackedRow]) -> tuple[str, ...]:
    """One sentence for each set that does not follow the training reward."""
    said = (reward_alone(name, [row.point for row in played]) for name, played in by_set(rows).items())
    return tuple(one for one in said if one)


def next_due(rows: Sequence[TrackedRow]) -> tuple[TrackedRow | None, list[TrackedRow]]:
    """(what to play next, what to skip): of each set the newest version that is due, the set that waited
    longest first. Nothing while one is played."""
    if any(row.state is TrackedState.PLAYING for row in rows):
        return None, []
    due = sorted((row for row in rows if row.state is TrackedState.DUE), key=lambda one: one.step)
    newest = {row.taskset: row for row in due}
    skipped = [row for row in due if newest[row.taskset] is not row]
    begun = {row.taskset: row.step for row in rows if row.eval_run_id}
    waiting = sorted(newest.values(), key=lambda one: (begun.get(one.taskset, -1), one.taskset))
    return (waiting[0] if waiting else None), skipped
