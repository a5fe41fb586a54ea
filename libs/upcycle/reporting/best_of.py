"""What choosing among the attempts at each task gives: the chosen one beside their mean and the ceiling."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.report import by_task
from upcycle.statistics.intervals import Estimate, TaskTotal, difference_estimate, rate_estimate
from upcycle.statistics.ranking import ScoredOutcome, auc_estimate, auc_within_tasks


@dataclass(frozen=True, slots=True)
class ChosenAttempt:
    """The attempt of a task that counts. episode: "" where none could be scored, which is no success."""

    task_slug: str
    episode: str
    score: float | None
    success: bool


@dataclass(frozen=True, slots=True)
class BestOfReport:
    """chosen, mean, ceiling: share of tasks whose chosen attempt, of all attempts, and of tasks of which any
    attempt succeeded. gain: chosen minus mean, left: ceiling minus chosen, both paired by task. auc, within:
    of the scores on these attempts, over all pairs and within tasks. num_unscored: attempts that could not be
    chosen: without a reward or a stored trajectory, or unread; unread: why, of one that what chose cannot
    read. num_seen: tasks whose attempts trained what
    chose."""

    num_attempts: int
    chosen_by: str
    num_tasks: int
    chosen: Estimate
    mean: Estimate
    ceiling: Estimate
    gain: Estimate
    left: Estimate
    auc: Estimate | None
    within: Estimate | None
    num_unscored: int
    unread: str
    num_seen: int
    choices: tuple[ChosenAttempt, ...]
    gate_evidence: bool = False
    """Never: the gate compares policies, and what chose is none."""

    def to_json(self) -> dict[str, Any]:
        """For a JSON line."""
        return asdict(self)


def best_of_report(
    episodes: Sequence[EpisodeRow],
    scores: Mapping[str, float],
    *,
    num_attempts: int,
    chosen_by: str,
    unread: str = "",
    seen: frozenset[str] = frozenset(),
) -> BestOfReport:
    """Of at least one episode. scores: by episode id, of those that can be chosen; of equal ones the first
    attempt counts. seen: digests of tasks that trained what chose."""
    tasks = by_task(episodes)
    choices = [_choice(slug, rows, scores) for slug, rows in tasks.items()]
    solved = [TaskTotal(sum(one.success for one in rows), len(rows)) for rows in tasks.values()]
    any_solved = [TaskTotal(float(one.total > 0), 1) for one in solved]
    chosen = [TaskTotal(float(one.success), 1) for one in choices]
    gains = [a.total - b.total / b.attempts for a, b in zip(chosen, solved, strict=True)]
    left = [a.total - b.total for a, b in zip(any_solved, chosen, strict=True)]
    outcomes = [
        ScoredOutcome(one.task_slug, scores[one.episode_id], one.success)
        for one in episodes
        if one.episode_id in scores
    ]
    return BestOfReport(
        num_attempts=num_attempts,
        chosen_by=chosen_by,
        num_tasks=len(tasks),
        chosen=rate_estimate(chosen),
        mean=rate_estimate(solved),
        ceiling=rate_estimate(any_solved),
        gain=difference_estimate(gains, bounds=(-1.0, 1.0)),
        left=difference_estimate(left, bounds=(0.0, 1.0)),
        auc=auc_estimate(outcomes),
        within=auc_within_tasks(outcomes),
        num_unscored=sum(one.episode_id not in scores for one in episodes),
        unread=unread,
        num_seen=sum(any(one.task_digest in seen for one in rows) for rows in tasks.values()),
        choices=tuple(choices),
    )


def _choice(slug: str, rows: Sequence[EpisodeRow], scores: Mapping[str, float]) -> ChosenAttempt:
    scored = [one for one in sorted(rows, key=lambda one: one.episode_id) if one.episode_id in scores]
    if not scored:
        return ChosenAttempt(slug, "", None, False)
    best = max(scored, key=lambda one: scores[one.episode_id])
    return ChosenAttempt(slug, best.show_name, scores[best.episode_id], best.success)
