"""Two evaluations of the same tasks by the same code, compared task by task."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from upcycle.errors import UpcycleError
from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun
from upcycle.reporting.report import by_task
from upcycle.statistics.intervals import Estimate, difference_estimate
from upcycle.statistics.paired import PairedTask, exact_p_value

_EPSILON: Final = 1e-9  # mean rewards of a task that differ by less are tied: sums are not exact


class NotComparable(UpcycleError, ValueError):
    """The two were not measured alike."""

    kind = "not_comparable"


@dataclass(frozen=True, slots=True)
class PairedScore:
    """B minus A. success: of all planned episodes; reward, and won, lost, tied of B by mean reward: over the
    tasks with a graded episode on both sides, None where there is none."""

    name: str
    num_tasks: int
    a_success: float
    b_success: float
    success: Estimate
    reward: Estimate | None
    won: int
    lost: int
    tied: int

    @property
    def num_rewards(self) -> int:
        """The tasks with a graded episode on both sides."""
        return self.won + self.lost + self.tied


@dataclass(frozen=True, slots=True)
class Comparison:
    """p_value: exact, two-sided: the chance of a difference in success as large, were both equally good on
    each task. differing: settings of sampling that are not the same, `temperature: 1, 0`."""

    overall: PairedScore
    families: tuple[PairedScore, ...]
    p_value: float
    num_ungraded: int
    differing: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Pair:
    family: str
    a: Sequence[EpisodeRow]
    b: Sequence[EpisodeRow]


def compare(a: EvaluatedRun, b: EvaluatedRun) -> Comparison:
    """B against A. Raises NotComparable for other tasks and for another source."""
    _check(a, b)
    theirs, ours = by_task(a.counted), by_task(b.counted)
    pairs = [_Pair(rows[0].family, theirs[slug], rows) for slug, rows in ours.items()]
    families: defaultdict[str, list[_Pair]] = defaultdict(list)
    for pair in pairs:
        families[pair.family].append(pair)
    counts = [_counts(pair) for pair in pairs]
    one_sided = (exact_p_value(counts), exact_p_value([_swapped(pair) for pair in counts]))
    return Comparison(
        overall=_score("all", pairs),
        families=tuple(_score(name, some) for name, some in sorted(families.items())),
        p_value=min(1.0, 2 * min(one_sided)),
        num_ungraded=sum(_reward_difference(pair) is None for pair in pairs),
        differing=_differing(a.sampling, b.sampling),
    )


def _check(a: EvaluatedRun, b: EvaluatedRun) -> None:
    for name, run in (("A", a), ("B", b)):
        if run.shortfall:
            raise NotComparable(
                f"{name} ({run.run_id}) is not whole: {run.shortfall}", "play it again, to its end"
            )
    if a.source_digest != b.source_digest:
        raise NotComparable(
            f"other code judged them: A ({a.run_id}) is of source {a.source_digest[:12] or 'not known'}, "
            f"B ({b.run_id}) of source {b.source_digest[:12] or 'not known'}",
            "evaluate both again with one environment",
        )
    digests = [{one.task_slug: one.task_digest for one in run.episodes} for run in (a, b)]
    only_a, only_b = (sorted(mine.keys() - other.keys()) for mine, other in (digests, digests[::-1]))
    changed = sorted(
        slug
        for slug in digests[0].keys() & digests[1].keys()
        if digests[0][slug] and digests[1][slug] and digests[0][slug] != digests[1][slug]
    )
    differing = (("only A has", only_a), ("only B has", only_b), ("other arguments have", changed))
    found = [f"{words} {_named(slugs)}" for words, slugs in differing if slugs]
    if found:
        raise NotComparable(
            f"they played other tasks: A ({a.run_id}) {a.taskset}, B ({b.run_id}) {b.taskset}; "
            + "; ".join(found),
            "compare evaluations of one taskset, or choose the same tasks with --task-ids",
        )
    if not digests[0]:
        raise NotComparable(f"A ({a.run_id}) and B ({b.run_id}) have no episode", "evaluate first")


def _named(slugs: Sequence[str]) -> str:
    more = f" and {len(slugs) - 3} more" if len(slugs) > 3 else ""
    return ", ".join(slugs[:3]) + more


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    names = sorted(a.keys() | b.keys())
    return tuple(f"{name}: {a.get(name)}, {b.get(name)}" for name in names if a.get(name) != b.get(name))


def _score(name: str, pairs: Sequence[_Pair]) -> PairedScore:
    counts = [_counts(pair) for pair in pairs]
    rewards = [gain for pair in pairs if (gain := _reward_difference(pair)) is not None]
    won, lost = sum(gain > _EPSILON for gain in rewards), sum(gain < -_EPSILON for gain in rewards)
    return PairedScore(
        name=name,
        num_tasks=len(pairs),
        a_success=sum(pair.head_rate for pair in counts) / len(counts),
        b_success=sum(pair.candidate_rate for pair in counts) / len(counts),
        success=difference_estimate([pair.difference for pair in counts], bounds=(-1, 1)),
        reward=difference_estimate(rewards) if rewards else None,
        won=won,
        lost=lost,
        tied=len(rewards) - won - lost,
    )


def _counts(pair: _Pair) -> PairedTask:
    """B in the place of the gate's candidate, A in that of head."""
    b, a = (sum(one.success for one in rows) for rows in (pair.b, pair.a))
    return PairedTask(pair.family, b, len(pair.b), a, len(pair.a))


def _swapped(pair: PairedTask) -> PairedTask:
    return PairedTask(
        pair.family,
        pair.head_successes,
        pair.head_attempts,
        pair.candidate_successes,
        pair.candidate_attempts,
    )


def _reward_difference(pair: _Pair) -> float | None:
    means = []
    for rows in (pair.b, pair.a):
        rewards = [one.reward for one in rows if one.reward is not None]
        if not rewards:
            return None
        means.append(sum(rewards) / len(rewards))
    return means[0] - means[1]
