"""Training runs on several tasksets: what is known of each, and which one gives the next groups. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from episodes import GroupOutcome
from scenario_runner.domain.tasksets import RegisteredTaskset
from upcycle.mixing import next_taskset, shown, with_own
from upcycle.run_config import RunSpec
from upcycle.tasks import plain_name

GIVES_NOTHING: Final = 8
"""Groups in a row without training after which a taskset is named: fewer say little."""


@dataclass(frozen=True, slots=True)
class MixedRow:
    """One taskset of a run. place: among them, 0 is the run's own. name: of the taskset, without a revision.
    taskset: key of the revision that new groups take their tasks from."""

    run_id: str
    place: int
    name: str
    taskset: str
    num_tasks: int
    source_digest: str = ""
    """Of the code that judges its episodes; "" where it is not known."""
    num_groups: int = 0
    num_guided: int = 0
    """Of the groups, those that are guided."""
    num_new: int = 0
    """Of the groups, those that play new tasks and are not guided."""
    num_trained: int = 0
    num_left_out: int = 0
    """Groups that ended without training."""
    num_in_a_row: int = 0
    """Of them, those since the last one that trained."""
    num_graded: int = 0
    """Episodes; guided ones, and those of new tasks, are not among these, the successes and the rewards."""
    num_successes: int = 0
    reward_sum: float = 0.0

    @property
    def num_own_groups(self) -> int:
        """Groups that took a turn in the order of its tasks."""
        return self.num_groups - self.num_guided - self.num_new

    def planned(self, *, guided: bool, new: bool = False) -> "MixedRow":
        """With one more group of its tasks."""
        num_guided, num_new = self.num_guided + guided, self.num_new + new
        return replace(self, num_groups=self.num_groups + 1, num_guided=num_guided, num_new=num_new)

    def closed(self, outcome: str) -> "MixedRow":
        """With one more group that ended."""
        if outcome == GroupOutcome.TRAINED:
            return replace(self, num_trained=self.num_trained + 1, num_in_a_row=0)
        in_a_row = self.num_in_a_row + 1
        return replace(self, num_left_out=self.num_left_out + 1, num_in_a_row=in_a_row)

    def graded(self, reward: float, *, success: bool) -> "MixedRow":
        """With one more episode."""
        return replace(
            self,
            num_graded=self.num_graded + 1,
            num_successes=self.num_successes + success,
            reward_sum=self.reward_sum + reward,
        )


@dataclass(frozen=True, slots=True)
class MixReport:
    """A taskset of a run, and its share of the run's groups."""

    row: MixedRow
    share: Fraction


def gives_nothing(report: MixReport, prompts_per_step: int) -> bool:
    """Whether the groups of a taskset train no more: as many in a row as two steps would take of it, and at
    least GIVES_NOTHING."""
    of_two_steps = 2 * prompts_per_step * report.share
    return report.row.num_in_a_row >= GIVES_NOTHING and report.row.num_in_a_row >= of_two_steps


def idle_text(report: MixReport) -> str:
    """That a taskset of a run gives no groups."""
    row = report.row
    return (
        f"taskset {row.name!r} of the mix gives no groups: the last {row.num_in_a_row} of its "
        f"{row.num_groups} ended without training; it has {shown(report.share)} of the run's groups"
    )


def rows_of(run_id: str, tasksets: Sequence[RegisteredTaskset], digests: Sequence[str]) -> list[MixedRow]:
    """The rows of a new run. tasksets: its own one first. digests: of their sources."""
    return [
        MixedRow(run_id, place, taskset.name, taskset.key, taskset.num_tasks, digest)
        for place, (taskset, digest) in enumerate(zip(tasksets, digests, strict=True))
    ]


def shares_of(spec: RunSpec) -> list[Fraction]:
    """Of the tasksets of a run, its own one first."""
    return [one.share for one in with_own(spec.taskset, spec.mix)]


def tasksets_of(spec: RunSpec) -> list[str]:
    """The tasksets of a run as it names them, its own one first; none of a run of recorded sessions alone."""
    return [one.taskset for one in with_own(spec.taskset, spec.mix)] if spec.taskset else []


def turns(
    shares: Sequence[Fraction], rows: Sequence[MixedRow], positions: Iterable[int]
) -> dict[int, list[int]]:
    """Places of tasksets, each with the positions of the groups that it gives, of the next ones of the run.

    Guided groups count, and those on new tasks: a taskset that has many of them gives fewer others, and the
    shares stay.
    """
    counts = [row.num_groups for row in rows]
    found: dict[int, list[int]] = {}
    for position in positions:
        place = next_taskset(shares, counts)
        counts[place] += 1
        found.setdefault(place, []).append(position)
    return found


def row_of(rows: Iterable[MixedRow], taskset: str) -> MixedRow:
    """That of the taskset that this key is a revision of."""
    found = list(rows)
    for row in found:
        if row.taskset == taskset:
            return row
    return next(row for row in found if row.name in (taskset, plain_name(taskset)))
