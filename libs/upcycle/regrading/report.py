"""What grading again says: old and new grades of the same trajectories, paired, clustered by task."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from upcycle.playing.recorded import StoredGrade
from upcycle.regrading.grading import Regraded
from upcycle.statistics.intervals import Estimate, TaskTotal, mean_estimate

_EPSILON: Final = 1e-9
"""Rewards that differ by less are the same: sums are not exact."""
_OUTCOMES: Final = ("graded", "kept", "not_reproducible", "failed", "unread")


@dataclass(frozen=True, slots=True)
class RegradedRun:
    """by: the digest of the source that graded, and its file, where it is none of the run's. num_ungraded:
    trajectories that have no reward to compare. notice: of how the run was read."""

    run_id: str
    by: str
    is_own_source: bool
    trajectories: tuple[Regraded, ...]
    num_ungraded: int = 0
    notice: str = ""


@dataclass(frozen=True, slots=True)
class RegradeReport:
    """old_…, new_…: means over the trajectories that have both grades. reward, success: new minus old, with
    an interval clustered by task. gained, lost: successes. counts: trajectories by outcome. subscores: name,
    old mean, new mean; None where one side has none of the name. changed: those whose reward or success
    changed, the largest change first."""

    counts: dict[str, int]
    num_tasks: int
    old_reward: float = 0.0
    new_reward: float = 0.0
    old_success: float = 0.0
    new_success: float = 0.0
    reward: Estimate | None = None
    success: Estimate | None = None
    up: int = 0
    down: int = 0
    gained: int = 0
    lost: int = 0
    subscores: tuple[tuple[str, float | None, float | None], ...] = ()
    changed: tuple[Regraded, ...] = ()
    num_judged: int = 0
    num_extras: int = 0

    @property
    def num_chosen(self) -> int:
        """Trajectories that were to be graded again."""
        return sum(self.counts.values())

    @property
    def num_compared(self) -> int:
        """Those that have both grades."""
        return self.counts["graded"] + self.counts["kept"]

    @property
    def is_whole(self) -> bool:
        """Each of them has both grades."""
        return self.num_compared == self.num_chosen

    def to_json(self) -> dict[str, Any]:
        """For a JSON line, without the trajectories."""
        fields = asdict(self)
        del fields["changed"]
        return {**fields, "coverage": self.num_compared / self.num_chosen if self.num_chosen else 0.0}


@dataclass(frozen=True, slots=True)
class _Pair:
    task: str
    old: StoredGrade
    new: StoredGrade

    @property
    def gain(self) -> float:
        return self.new.reward - self.old.reward


def report_of(done: Sequence[Regraded]) -> RegradeReport:
    """Of at least one."""
    counts = Counter(one.outcome for one in done)
    pairs = [
        _Pair(one.task.digest, one.old, one.new)
        for one in done
        if one.old is not None and one.new is not None
    ]
    by_outcome = {name: counts[name] for name in _OUTCOMES}
    if not pairs:
        return RegradeReport(by_outcome, 0)
    gains = [pair.gain for pair in pairs]
    flips = [pair.new.success - pair.old.success for pair in pairs]
    changed = sorted(filter(_is_changed, done), key=lambda one: (-abs(change_of(one)), one.name))
    return RegradeReport(
        counts=by_outcome,
        num_tasks=len({pair.task for pair in pairs}),
        old_reward=_mean([pair.old.reward for pair in pairs]),
        new_reward=_mean([pair.new.reward for pair in pairs]),
        old_success=_mean([float(pair.old.success) for pair in pairs]),
        new_success=_mean([float(pair.new.success) for pair in pairs]),
        reward=mean_estimate(_by_task(pairs, lambda pair: pair.gain)),
        success=mean_estimate(
            _by_task(pairs, lambda pair: pair.new.success - pair.old.success), bounds=(-1, 1)
        ),
        up=sum(gain > _EPSILON for gain in gains),
        down=sum(gain < -_EPSILON for gain in gains),
        gained=flips.count(1),
        lost=flips.count(-1),
        subscores=_subscores(pairs),
        changed=tuple(changed),
        num_judged=sum(one.asked_judge for one in done),
        num_extras=sum(one.had_extras for one in done),
    )


def change_of(one: Regraded) -> float:
    """New minus old reward; 0 where there is no new one."""
    return one.new.reward - one.old.reward if one.old is not None and one.new is not None else 0.0


def _is_changed(one: Regraded) -> bool:
    if one.old is None or one.new is None:
        return False
    return abs(change_of(one)) > _EPSILON or one.old.success != one.new.success


def _by_task(pairs: Sequence[_Pair], difference: Callable[[_Pair], float]) -> list[TaskTotal]:
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        by_task[pair.task].append(difference(pair))
    return [TaskTotal(sum(values), len(values)) for _, values in sorted(by_task.items())]


def _subscores(pairs: Sequence[_Pair]) -> tuple[tuple[str, float | None, float | None], ...]:
    """Of trajectories that a scenario graded on either side: one without any has none to add."""
    names = dict.fromkeys(name for pair in pairs for side in (pair.old, pair.new) for name in side.subscores)
    return tuple(
        (name, _mean_of(name, [pair.old for pair in pairs]), _mean_of(name, [pair.new for pair in pairs]))
        for name in names
    )


def _mean_of(name: str, grades: Sequence[StoredGrade]) -> float | None:
    values = [one.subscores[name] for one in grades if name in one.subscores]
    return _mean(values) if values else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
