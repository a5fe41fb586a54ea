"""What was played, as the decision reads it: up to some attempts per task, as seen and at its worst."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.gate.outcomes import Outcome, Outcomes, TaskOutcomes


@dataclass(frozen=True, slots=True)
class TaskPlay:
    """Paired attempts at one task. both: pairs in which both sides succeeded; wins, losses: in which the
    candidate alone did, or head alone."""

    task: str
    family: str
    attempts: int  # at least 1
    both: int
    wins: int
    losses: int

    @property
    def rate(self) -> float:
        """The candidate's, 0..1."""
        return (self.both + self.wins) / self.attempts

    @property
    def other_rate(self) -> float:
        """Head's, 0..1."""
        return (self.both + self.losses) / self.attempts

    @property
    def difference(self) -> float:
        """Candidate minus head, -1..1."""
        return (self.wins - self.losses) / self.attempts

    @property
    def noise(self) -> float:
        """Variance of the difference from repeated attempts alone, unbiased. At least 2 attempts."""
        return ((self.wins + self.losses) / self.attempts - self.difference**2) / (self.attempts - 1)


@dataclass(frozen=True, slots=True)
class Evidence:
    """seen: the tasks with a complete pair. worst: all tasks, with what is missing filled in against the
    candidate. missing: attempts of either side. played: attempts of both sides, those included."""

    seen: tuple[TaskPlay, ...]
    worst: tuple[TaskPlay, ...]
    missing: int
    played: int


@dataclass(frozen=True, slots=True)
class TaskBits:
    """All that was played of a task, one bit an attempt: thousands of decisions are simulated in a test."""

    task: str
    family: str
    candidate: int  # bit i: attempt i succeeded
    head: int
    candidate_missing: int
    head_missing: int

    @classmethod
    def of(cls, task: TaskOutcomes) -> "TaskBits":
        """Of the outcomes of one task."""
        return cls(
            task.task,
            task.family,
            _bits(task.candidate, _WON),
            _bits(task.head, _WON),
            _bits(task.candidate, _LOST) if None in task.candidate else 0,
            _bits(task.head, _LOST) if None in task.head else 0,
        )

    def seen(self, attempts: int) -> TaskPlay | None:
        """The first attempts, without the pairs that lack a side; None: none is complete."""
        left = ((1 << attempts) - 1) & ~(self.candidate_missing | self.head_missing)
        return self._play(self.candidate & left, self.head & left, left.bit_count()) if left else None

    def worst(self, attempts: int) -> TaskPlay:
        """The first attempts; what is missing of the candidate failed, what is missing of head succeeded."""
        first = (1 << attempts) - 1
        return self._play(self.candidate & first, (self.head | self.head_missing) & first, attempts)

    def missing(self, attempts: int) -> int:
        """How many of the first attempts of either side are missing."""
        first = (1 << attempts) - 1
        return (self.candidate_missing & first).bit_count() + (self.head_missing & first).bit_count()

    def _play(self, candidate: int, head: int, attempts: int) -> TaskPlay:
        both = (candidate & head).bit_count()
        wins, losses = candidate.bit_count() - both, head.bit_count() - both
        return TaskPlay(self.task, self.family, attempts, both, wins, losses)


def bits_of(outcomes: Outcomes) -> tuple[TaskBits, ...]:
    """Of all tasks, in order."""
    return tuple(TaskBits.of(task) for task in outcomes.tasks)


def plays_at(tasks: Iterable[TaskBits], attempts: Mapping[str, int]) -> Evidence:
    """The first attempts at each task. attempts: by family, at most what was played."""
    seen, worst, missing, played = [], [], 0, 0
    for task in tasks:
        first = attempts[task.family]
        lost = task.missing(first)
        play = task.seen(first)
        if play is not None:
            seen.append(play)
        worst.append(task.worst(first) if lost or play is None else play)
        missing += lost
        played += 2 * first
    return Evidence(tuple(seen), tuple(worst), missing, played)


_WON: Final = {1: "1", 0: "0", None: "0"}
_LOST: Final = {1: "0", 0: "0", None: "1"}


def _bits(side: Sequence[Outcome], digits: Mapping[Outcome, str]) -> int:
    return int("0" + "".join([digits[y] for y in reversed(side)]), 2)
