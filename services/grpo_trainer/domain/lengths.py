"""Whether what trains is as long as what was drawn: long tasks must not be left behind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from grpo_trainer.domain.trajectories import CompleteGroup

TRAINED, STALE, SINCE = "lengths_trained", "lengths_stale", "lengths_since"
"""Sums over all steps so far; SINCE: over the trained ones after the first max_staleness + 1 steps."""
RATIO = "trained_to_drawn_length"


@dataclass(frozen=True, slots=True)
class Lengths:
    """How many trajectories, and how many tokens their policy sampled."""

    count: float = 0.0
    tokens: float = 0.0

    @classmethod
    def of(cls, groups: Iterable[CompleteGroup]) -> Lengths:
        """Of groups that the run planned: evaluations draw their tasks by themselves."""
        members = [member for group in groups if not group.source_run_id for member in group.members]
        return cls(float(len(members)), float(sum(member.num_tokens for member in members)))

    def __add__(self, other: Lengths) -> Lengths:
        return Lengths(self.count + other.count, self.tokens + other.tokens)

    @property
    def mean(self) -> float:
        """Tokens of one; 0 where there is none."""
        return self.tokens / self.count if self.count else 0.0

    @classmethod
    def read(cls, metrics: Mapping[str, float], name: str) -> Lengths:
        """What an earlier step remembered."""
        return cls(metrics.get(f"{name}_count", 0.0), metrics.get(f"{name}_tokens", 0.0))

    def written(self, name: str) -> dict[str, float]:
        """As metrics, which survive a restart with the step."""
        return {f"{name}_count": self.count, f"{name}_tokens": self.tokens}


NONE: Final = Lengths()


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is not trained when a step begins. waiting: groups with a member, complete or not, without those
    of the step; stale: thrown away since the step before."""

    waiting: Lengths = NONE
    stale: Lengths = NONE


NOTHING_BESIDE: Final = Drawn()


def length_metrics(
    before: Mapping[str, float], groups: Iterable[CompleteGroup], drawn: Drawn, *, counts: bool
) -> dict[str, float]:
    """Mean length of the step's trajectories, and of all that trained over that of all that were drawn and
    could have: 1 where no task is left behind for being long. counts: the first steps are over, in which long
    tasks cannot have ended yet; before that there is no ratio."""
    now = Lengths.of(groups)
    trained = Lengths.read(before, TRAINED) + now
    stale = Lengths.read(before, STALE) + drawn.stale
    since = Lengths.read(before, SINCE) + (now if counts else NONE)
    found = {**trained.written(TRAINED), **stale.written(STALE), **since.written(SINCE)}
    if now.count:
        found["length_mean"] = now.mean
    everything = trained + stale + drawn.waiting
    if since.tokens and everything.tokens:
        found[RATIO] = since.mean / everything.mean
    return found
