"""Which tasks of a run `upcycle tasksets from` takes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from upcycle.errors import UpcycleError
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import EpisodeResult
    from upcycle.reporting.episodes import EpisodeRow


class UnclearSelection(UpcycleError, ValueError):
    """The flags do not say which tasks, or where they go; nothing was written."""

    kind = "unclear_selection"


@Parameter(name="*", group="Which tasks, one of")
@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """By the graded episodes of each task."""

    failed: Annotated[bool, Parameter(negative="")] = False
    """no episode of the task succeeded."""
    no_spread: Annotated[bool, Parameter(negative="")] = False
    """all of its episodes, two or more, have the same reward: a group of them would not train."""
    below: float | None = None
    """the mean of its rewards is less than this."""

    def check(self) -> None:
        """Raises UnclearSelection unless one of them is given."""
        flags = {"--failed": self.failed, "--no-spread": self.no_spread, "--below": self.below is not None}
        given = [flag for flag, is_given in flags.items() if is_given]
        if len(given) > 1:
            raise UnclearSelection(f"{' and '.join(given)} each choose tasks", "give one of them")
        if not given:
            raise UnclearSelection("nothing says which tasks", f"give one of {', '.join(flags)} X")
        if self.below is not None and not math.isfinite(self.below):
            raise UnclearSelection(f"--below is {self.below}", "give a reward, such as 0.5")

    @property
    def flag(self) -> str:
        """As it was typed."""
        return f"--below {self.below:g}" if self.below is not None else f"--{self.word}"

    @property
    def word(self) -> str:
        """For the name of the taskset."""
        return "failed" if self.failed else "no-spread" if self.no_spread else f"below-{self.below:g}"

    def holds(self, episodes: "Sequence[EpisodeResult | EpisodeRow]") -> bool:
        """Of the graded episodes of one task."""
        rewards = [one.reward or 0.0 for one in episodes]
        if self.failed:
            return not any(one.success for one in episodes)
        if self.no_spread:
            return len(rewards) > 1 and min(rewards) == max(rewards)
        return math.fsum(rewards) / len(rewards) < (self.below or 0.0)


@dataclass(frozen=True, slots=True)
class Selected:
    """Slugs in the order of the taskset, and what was left out."""

    chosen: tuple[str, ...]
    num_held_out: int
    num_ungraded: int
    num_tasks: int

    def __str__(self) -> str:
        notes = [f"{amount(self.num_held_out, 'held-out task')} left out"]
        if self.num_ungraded:
            notes.append(f"{self.num_ungraded} without a graded episode")
        return f"{len(self.chosen)} of {amount(self.num_tasks, 'task')}; {', '.join(notes)}"
