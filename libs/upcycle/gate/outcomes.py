"""Outcomes of a candidate and of head, played side by side: paired by task and by attempt."""

from dataclasses import dataclass
from typing import TypeAlias

from upcycle.gate.errors import BadEvidence

Outcome: TypeAlias = int | None
"""1: success. 0: no success, attributable failures included. None: lost to infrastructure and given up."""


@dataclass(frozen=True, slots=True)
class TaskOutcomes:
    """One held-out task, attempts in order; attempt i of both sides had the same seed. An attempt that is yet
    to be played is not there: the tuples end before it."""

    task: str
    family: str
    candidate: tuple[Outcome, ...] = ()
    head: tuple[Outcome, ...] = ()

    @property
    def played(self) -> int:
        """Attempts that ended on both sides, however they ended."""
        return min(len(self.candidate), len(self.head))


@dataclass(frozen=True, slots=True)
class Outcomes:
    """All tasks of the held-out set, each once, those included of which nothing was played yet. Raises
    BadEvidence for a task that stands twice and for an outcome that is none."""

    tasks: tuple[TaskOutcomes, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for one in self.tasks:
            if one.task in seen:
                raise BadEvidence(f"task {one.task!r} stands twice in the outcomes; name each task once")
            seen.add(one.task)
            if not _OUTCOMES.issuperset(one.candidate) or not _OUTCOMES.issuperset(one.head):
                raise BadEvidence(f"task {one.task!r} has an outcome that is not 1, 0 or None (missing)")


_OUTCOMES = frozenset((0, 1, None))


@dataclass(frozen=True, slots=True)
class TaskCount:
    """Successes of one version at one task."""

    successes: int
    attempts: int  # at least 1

    @property
    def rate(self) -> float:
        """0..1."""
        return self.successes / self.attempts
