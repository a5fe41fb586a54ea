"""The report of one evaluation, as values; `upcycle.cli.report_text` writes it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun
from upcycle.reporting.shown_answers import ShownAnswer, shown_answers
from upcycle.statistics.attempts import has_spread, histogram, ks_up_to, pass_at_k, pass_hat_k
from upcycle.statistics.intervals import Estimate, TaskTotal, mean_estimate, rate_estimate

NUM_WORST: Final = 3


@dataclass(frozen=True, slots=True)
class Score:
    """Of some tasks. success: of all planned episodes, a missing one has not succeeded; reward: of the graded
    ones, None where there is none."""

    name: str
    num_tasks: int
    num_planned: int
    num_graded: int
    success: Estimate
    reward: Estimate | None


@dataclass(frozen=True, slots=True)
class AttemptScore:
    """pass_at: at least one of k attempts succeeds; pass_hat: all of them do (pass^k). Means over tasks."""

    k: int
    pass_at: float
    pass_hat: float


@dataclass(frozen=True, slots=True)
class FailureCluster:
    """Graded episodes without success that ended alike; example: what shows the first."""

    family: str
    first_tool_error: str
    ended: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """What the end of `upcycle eval` says. bins: ten counts of rewards from 0 to 1, none where
    bins_refused says why not. num_groups: tasks whose every episode was graded. num_tokens:
    of all episodes of which it is known. shown_answers: of the
    episodes that were read."""

    overall: Score
    families: tuple[Score, ...]
    attempts: tuple[AttemptScore, ...]
    subscores: Mapping[str, float]
    bins: tuple[int, ...]
    bins_refused: str
    num_groups: int
    num_groups_with_spread: int
    failures: tuple[FailureCluster, ...]
    worst: tuple[EpisodeRow, ...]
    mean_turns: float
    mean_tokens: float | None
    num_tokens: int
    shown_answers: tuple[ShownAnswer, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)


def report_of(run: EvaluatedRun) -> EvaluationReport | None:
    """The report, without tasks that have no solution; None for a run without an episode."""
    episodes = run.counted
    if not episodes:
        return None
    graded = [one for one in episodes if one.reward is not None]
    groups = [rewards for rewards in _rewards(run) if len(rewards) == run.group]
    bins, refused = _bins(graded)
    counted = graded or episodes
    tokens = [one.num_tokens for one in counted if one.num_tokens is not None]
    return EvaluationReport(
        overall=score("all", episodes),
        families=_families(episodes),
        attempts=_attempts(run),
        subscores=_subscores(graded),
        bins=bins,
        bins_refused=refused,
        num_groups=len(groups),
        num_groups_with_spread=sum(has_spread(rewards) for rewards in groups),
        failures=_failures(graded),
        worst=_worst(graded),
        mean_turns=sum(one.num_turns for one in counted) / len(counted),
        mean_tokens=sum(tokens) / len(tokens) if tokens else None,
        num_tokens=sum(one.num_tokens or 0 for one in episodes),
        shown_answers=shown_answers(episodes),
    )


def score(name: str, episodes: Sequence[EpisodeRow]) -> Score:
    """Success and reward of at least one episode."""
    tasks = by_task(episodes)
    rewards = [_total(rows) for rows in tasks.values() if any(one.reward is not None for one in rows)]
    return Score(
        name=name,
        num_tasks=len(tasks),
        num_planned=len(episodes),
        num_graded=sum(one.reward is not None for one in episodes),
        success=rate_estimate(
            [TaskTotal(sum(one.success for one in rows), len(rows)) for rows in tasks.values()]
        ),
        reward=mean_estimate(rewards, bounds=_bounds(episodes)) if rewards else None,
    )


def _bounds(episodes: Iterable[EpisodeRow]) -> tuple[float, float]:
    """0 and 1, where no reward of a foreign environment lies outside."""
    rewards = [one.reward for one in episodes if one.reward is not None]
    return (0.0, 1.0) if min(rewards) >= 0 and max(rewards) <= 1 else (-math.inf, math.inf)


def by_task(episodes: Iterable[EpisodeRow]) -> dict[str, list[EpisodeRow]]:
    """By slug, in the order of the slugs, so that a seeded resampling repeats."""
    found: defaultdict[str, list[EpisodeRow]] = defaultdict(list)
    for one in episodes:
        found[one.task_slug].append(one)
    return dict(sorted(found.items()))


def _total(rows: Iterable[EpisodeRow]) -> TaskTotal:
    rewards = [one.reward for one in rows if one.reward is not None]
    return TaskTotal(sum(rewards), len(rewards))


def _rewards(run: EvaluatedRun) -> list[list[float]]:
    """The rewards of each task's episodes that were graded."""
    tasks = by_task(run.counted).values()
    return [[one.reward for one in rows if one.reward is not None] for rows in tasks]


def _families(episodes: Sequence[EpisodeRow]) -> tuple[Score, ...]:
    found: defaultdict[str, list[EpisodeRow]] = defaultdict(list)
    for one in episodes:
        found[one.family].append(one)
    return tuple(score(name, rows) for name, rows in sorted(found.items()))


def _attempts(run: EvaluatedRun) -> tuple[AttemptScore, ...]:
    """Over the tasks with as many planned episodes as the group has."""
    whole = [rows for rows in by_task(run.counted).values() if len(rows) == run.group]
    if run.group < 2 or not whole:
        return ()
    solved = [sum(one.success for one in rows) for rows in whole]
    return tuple(
        AttemptScore(
            k,
            sum(pass_at_k(count, run.group, k) for count in solved) / len(solved),
            sum(pass_hat_k(count, run.group, k) for count in solved) / len(solved),
        )
        for k in ks_up_to(run.group)
    )


def _subscores(graded: Iterable[EpisodeRow]) -> dict[str, float]:
    """The mean of each over the episodes that have it."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for one in graded:
        for name, value in one.subscores.items():
            found[name].append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _bins(graded: Iterable[EpisodeRow]) -> tuple[tuple[int, ...], str]:
    for one in graded:
        if one.reward is not None and not 0 <= one.reward <= 1:
            return (), f"reward {one.reward:g} of task {one.task_slug} is outside 0 to 1"
    return tuple(histogram(one.reward for one in graded if one.reward is not None)), ""


def _failures(graded: Iterable[EpisodeRow]) -> tuple[FailureCluster, ...]:
    """Most frequent first."""
    alike = Counter[tuple[str, str, str]]()
    first: dict[tuple[str, str, str], str] = {}
    for one in graded:
        if not one.success:
            key = (one.family, one.first_tool_error, one.ended)
            alike[key] += 1
            first.setdefault(key, one.show_name)
    return tuple(FailureCluster(*key, count, first[key]) for key, count in alike.most_common())


def _worst(graded: Sequence[EpisodeRow]) -> tuple[EpisodeRow, ...]:
    """The lowest rewards, one episode per task, of those without success."""
    chosen: dict[str, EpisodeRow] = {}
    for one in sorted(graded, key=lambda one: (one.reward or 0.0, one.task_slug, one.episode_id)):
        if not one.success:
            chosen.setdefault(one.task_slug, one)
    return tuple(chosen.values())[:NUM_WORST]
