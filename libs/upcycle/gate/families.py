"""Whether a family lost more than its margin: judged for families of every size, by what its own tasks show
and, where those are few, by what all tasks show.

A family's difference is normal about that of all tasks, with a standard deviation of `SPREAD` between
families; its own mean is known to within its standard error. The risk is the posterior probability that it
lost more than its margin (the normal model of Lindley and Smith 1972). What all tasks gained counts up to
`MOST_EXPECTED`: a large gain elsewhere says nothing against a loss here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.statistics.student import t_tail

SPREAD: Final = 0.10
MOST_EXPECTED: Final = 0.03
PROVEN_RISK: Final = 0.10
TOLERATED_RISK: Final = 0.50
_BORROWED_TASKS: Final = 10.0
_LEAST_VARIANCE: Final = 0.01  # of a task's difference


@dataclass(frozen=True, slots=True)
class FamilySums:
    """Differences of one family, one per task: how many, their sum, and the sum of squared deviations."""

    family: str
    num_tasks: int
    total: float
    deviations: float

    @property
    def mean(self) -> float:
        """Mean difference, -1..1."""
        return self.total / self.num_tasks


@dataclass(frozen=True, slots=True)
class FamilyRisk:
    """One family against one other version. mean: measured difference. risk: of a loss beyond the margin; of
    a critical family the level at which its own tasks show that it kept it."""

    family: str
    num_tasks: int
    mean: float
    margin: float
    risk: float
    against: str = ""  # the version's name where it is not head

    @property
    def is_proven(self) -> bool:
        """The margin is kept, beyond reasonable doubt."""
        return self.risk <= PROVEN_RISK

    @property
    def is_lost(self) -> bool:
        """A loss beyond the margin is more likely than not."""
        return self.risk > TOLERATED_RISK


def family_sums(differences: Iterable[tuple[str, float]]) -> dict[str, FamilySums]:
    """By family, in the order of their names. differences: (family, difference) of each task."""
    by_family: dict[str, list[float]] = {}
    for family, difference in differences:
        by_family.setdefault(family, []).append(difference)
    return {name: _sums(name, by_family[name]) for name in sorted(by_family)}


def _sums(family: str, differences: Sequence[float]) -> FamilySums:
    total = math.fsum(differences)
    mean = total / len(differences)
    return FamilySums(family, len(differences), total, math.fsum((d - mean) ** 2 for d in differences))


def family_risk(
    family: FamilySums, everything: Sequence[FamilySums], margin: float, against: str = ""
) -> FamilyRisk:
    """The risk of one of the families of `everything`."""
    error2 = _variance(family, everything) / family.num_tasks
    total = math.fsum(one.total for one in everything) / sum(one.num_tasks for one in everything)
    weight = SPREAD**2 / (SPREAD**2 + error2)
    mean = weight * family.mean + (1 - weight) * min(total, MOST_EXPECTED)
    z = (margin + mean) / math.sqrt(weight * error2)
    risk = math.erfc(z / math.sqrt(2)) / 2
    return FamilyRisk(family.family, family.num_tasks, family.mean, margin, risk, against)


def critical_risk(family: FamilySums, margin: float, against: str = "") -> FamilyRisk:
    """The risk of a family that must be proven on its own tasks, by Student's test; 1 of a single task."""
    n, risk = family.num_tasks, 1.0
    if n >= 2:
        error = math.sqrt(max(family.deviations / (n - 1), _LEAST_VARIANCE) / n)
        risk = t_tail((family.mean + margin) / error, n - 1)
    return FamilyRisk(family.family, n, family.mean, margin, risk, against)


def _variance(family: FamilySums, everything: Sequence[FamilySums]) -> float:
    """Of the difference of one task: its family's, and that within all families at the weight of 10 tasks."""
    freedom = sum(one.num_tasks - 1 for one in everything)
    pooled = math.fsum(one.deviations for one in everything) / freedom if freedom else 0.25
    own = family.deviations + _BORROWED_TASKS * pooled
    return max(_LEAST_VARIANCE, own / (family.num_tasks - 1 + _BORROWED_TASKS))
