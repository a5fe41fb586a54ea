"""What the rows of a run say about its numbers, which are added up in the run's row while it goes on."""

from dataclasses import dataclass, field

from scenario_runner.domain.runs import Counts

COUNTED_AT_ONCE = 4096
"""Episodes: a run with more of them is counted in pieces, each in a transaction of its own."""


@dataclass(frozen=True, slots=True)
class Recount:
    """The first groups of a run, counted. counts: of the whole run when this began; while they are the same,
    no row has changed, because nothing of such a run is in flight."""

    counts: Counts = field(default_factory=lambda: Counts({}))
    num_groups: int = 0
    num_wrong: int = 0
    """Groups that said another number of graded members; they are corrected."""
    num_graded: int = 0
    num_successes: int = 0
    reward_sum: float = 0.0

    @property
    def is_small(self) -> bool:
        """The whole run may be counted in one transaction."""
        return self.counts.requested <= COUNTED_AT_ONCE


def groups_at_once(group_size: int) -> int:
    """Groups of one piece."""
    return max(1, COUNTED_AT_ONCE // group_size)
