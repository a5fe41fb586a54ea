"""Which graded trajectories of a run are graded again."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Final

from upcycle.evenly import evenly
from upcycle.regrading.errors import RegradeRefused
from upcycle.task_rows import EnvironmentRef, Task

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class ChosenTrajectory:
    """name: by which `upcycle trajectories show` finds it. task: in the environment that grades it now.
    source_digest: of the code that judged it, as far as its run says. read: its line, as
    docs/reference/trajectories-jsonl.md has it."""

    name: str
    task: Task
    source_digest: str
    read: Callable[[], Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class GradedRun:
    """The graded trajectories of a run, by task. num_ungraded: those without a reward, of which nothing is
    compared. notice: what a person should know of how it was read."""

    run_id: str
    trajectories: tuple[ChosenTrajectory, ...]
    num_ungraded: int = 0
    notice: str = ""

    @property
    def environments(self) -> tuple[tuple[EnvironmentRef, str], ...]:
        """Each once, with the digest of its source."""
        pairs = ((one.task.environment, one.source_digest) for one in self.trajectories)
        return tuple(dict.fromkeys(pairs))

    def only(self, slugs: Sequence[str], limit: int | None) -> "GradedRun":
        """Of these tasks alone, if some are named; at most so many, spread evenly over the tasks. Raises
        RegradeRefused where none is left."""
        known = {one.task.slug for one in self.trajectories}
        if unknown := [slug for slug in slugs if slug not in known]:
            near = get_close_matches(unknown[0], known, n=1)
            there = ", ".join(sorted(known)[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
            raise RegradeRefused(
                f"{self.run_id} has no graded trajectory of task {unknown[0]!r:.80}",
                f"did you mean {near[0]!r}?" if near else f"it has {there}",
            )
        kept = [one for one in self.trajectories if not slugs or one.task.slug in slugs]
        return replace(self, trajectories=tuple(evenly(kept, limit or len(kept))))

    def at(self, places: Mapping[tuple[EnvironmentRef, str], EnvironmentRef]) -> "GradedRun":
        """The same with each environment where its source lies now."""
        moved = (
            replace(one, task=replace(one.task, environment=places[one.task.environment, one.source_digest]))
            for one in self.trajectories
        )
        return replace(self, trajectories=tuple(moved))
