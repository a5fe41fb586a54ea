"""Moments of a history that follow from what happened: the second step, not 7 s after the begin."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.simulation.virtual_time import VirtualLoop

from identities.errors import InvalidIdentity

OBJECTS: Final = ("object training", "object policies", "object trajectories")
FACTS: Final = (
    "run.submitted",
    "trajectory.recorded",
    "trajectory.graded",
    "episode.failed",
    "group.settled",
    "step.completed",
    "checkpoint.saved",
    "run.stopping",
    "run.finished",
)


@dataclass(frozen=True, slots=True)
class Moment:
    """The n-th time that a fact, or an object below a folder, is stored. what: one of OBJECTS and FACTS."""

    what: str
    nth: int


class Moments:
    """Counts what is stored, and has something done at the moments that the plan names."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._counts: Counter[str] = Counter()
        self._awaited: dict[Moment, list[Callable[[], object]]] = defaultdict(list)

    def at(self, moment: Moment, act: Callable[[], object]) -> None:
        """Do something outside of all processes right after a moment."""
        self._awaited[moment].append(act)

    def on_fact(self, kind: str) -> None:
        """A fact was added to the stream of facts."""
        self._note(kind)

    def on_object(self, key: str) -> None:
        """An object was stored."""
        self._note(f"object {_folder(key)}")

    def _note(self, what: str) -> None:
        self._counts[what] += 1
        for act in self._awaited.pop(Moment(what, self._counts[what]), ()):
            self._loop.later(0.0, act)


def _folder(key: str) -> str:
    parts = key.split("/", 2)
    if len(parts) < 3:
        raise InvalidIdentity(f"object key {key!r} has no folder below its tenant")
    return parts[1]
