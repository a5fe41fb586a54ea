"""Whether the beginnings of successful trajectories succeed already: then what came after is not needed.

The idea is TRACE's (arXiv:2510.01367): where the policy found a shortcut, or the grader asks for too little,
an episode succeeds before the evidence is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.regrading.grading import Regraded
from upcycle.statistics.binomial import binomial_tail

TOLERATED: Final = 0.02
"""Share of beginnings that may succeed; the monitors of a run tolerate the same share."""
ERROR: Final = 0.01
"""Chance of a false alarm at the tolerated share."""


@dataclass(frozen=True, slots=True)
class CutReport:
    """share: of each trajectory that was played. num_cut: successes whose beginning was graded; passed: those
    that succeed already. num_others: that did not succeed, had guidance, or ended by a failure of the policy;
    num_unclear: that could not be graded."""

    share: float
    num_cut: int
    passed: tuple[Regraded, ...]
    num_others: int
    num_unclear: int

    @property
    def rate(self) -> float:
        """Of beginnings that succeed; 0 where none was graded."""
        return len(self.passed) / self.num_cut if self.num_cut else 0.0

    @property
    def is_alarm(self) -> bool:
        """Whether so many successes have a chance of at most ERROR at the tolerated share, by the exact
        binomial."""
        return binomial_tail(len(self.passed), self.num_cut, TOLERATED) <= ERROR


def cut_report(trajectories: Sequence[Regraded], share: float) -> CutReport:
    """Of trajectories that were graded again with `cut`."""
    graded = [one for one in trajectories if one.outcome == "graded"]
    passed = tuple(one for one in graded if one.new is not None and one.new.success)
    num_others = sum(one.outcome == "kept" for one in trajectories)
    return CutReport(share, len(graded), passed, num_others, len(trajectories) - len(graded) - num_others)
