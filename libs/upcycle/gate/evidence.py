"""What was played, as the decision reads it: up to some attempts per task, as seen and at its worst."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def plays_at(outcomes: Outcomes, attempts: Mapping[str, int]) -> Evidence:
    """The first attempts at each task. attempts: by family, at most what was played."""
    seen, worst, missing, played = [], [], 0, 0
    for task in outcomes.tasks:
        m = attempts[task.family]
        candidate, head = task.candidate[:m], task.head[:m]
        lost = candidate.count(None) + head.count(None)
        missing += lost
        played += 2 * m
        play = _play(task, candidate, head)
        if not lost:
            seen.append(play)
            worst.append(play)
            continue
        if any(c is not None and h is not None for c, h in zip(candidate, head, strict=True)):
            seen.append(play)
        filled = tuple(y or 0 for y in candidate), tuple(1 if y is None else y for y in head)
        worst.append(_play(task, *filled))
    return Evidence(tuple(seen), tuple(worst), missing, played)


def _play(task: TaskOutcomes, candidate: Sequence[Outcome], head: Sequence[Outcome]) -> TaskPlay:
    """Of the pairs that are complete."""
    pairs = list(zip(candidate, head, strict=True))
    both, wins, losses = pairs.count((1, 1)), pairs.count((1, 0)), pairs.count((0, 1))
    return TaskPlay(task.task, task.family, both + wins + losses + pairs.count((0, 0)), both, wins, losses)
