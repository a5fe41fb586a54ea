"""Episodes that were not graded in time. The planner publishes `episode.failed` as a decision; where a grade
was decided first, it applies the grade.

That grade may not have been read yet: an episode of the plan changes only once it is decided.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from episodes import EpisodeFailure
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.runs import EpisodeRow, RunRecord
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed

OVERDUE = EpisodeFailure.TIMEOUT
"""Failure of an episode that was not graded in time: the only one that this service decides."""

MARGIN_S: Final = 5.0
"""The sampler ends an episode at its deadline and knows whose failure that was, so it reports first."""


def overdue_ids(unit: PlanUnit, run: RunRecord) -> list[str]:
    """Episodes that were opened too long ago."""
    return [episode.episode_id for episode in _opened_too_long_ago(unit, run)]


def overdue(unit: PlanUnit, run: RunRecord, at_grader: Collection[str] = ()) -> list[EpisodeFailed]:
    """What is to be decided about episodes that were not graded in time.

    at_grader: episodes that were played and wait to be graded; their deadline waits for the grader. Nothing
    while a training run is to end early: the position of `run.stopping` in the stream says which grades
    count, and what is not graded by then is cancelled.
    """
    found = () if run.awaits_trainer else _opened_too_long_ago(unit, run)
    detail = f"not graded within {run.spec.episode_deadline_s} s after its environment was opened"
    return [
        unit.failure_of(run, episode, OVERDUE, detail, environment_s=_alive_s(unit, run, episode))
        for episode in found
        if episode.episode_id not in at_grader
    ]


def has_unopened(unit: PlanUnit, run: RunRecord) -> bool:
    """Whether an episode was dispatched too long ago, and not opened."""
    return bool(unit.never_opened(run.run_id, dispatched_too_long_ago(unit, run)))


def dispatched_too_long_ago(unit: PlanUnit, run: RunRecord) -> datetime:
    """What was dispatched before should have been opened."""
    return unit.now - timedelta(seconds=run.spec.episode_deadline_s)


def _opened_too_long_ago(unit: PlanUnit, run: RunRecord) -> list[EpisodeRow]:
    before = unit.now - timedelta(seconds=_limit_s(run))
    if unit.watched.began_at(before) > before:  # what was open while no planner looked has its time again
        return []
    return unit.overdue(run.run_id, before)


def _alive_s(unit: PlanUnit, run: RunRecord, episode: EpisodeRow) -> float:
    """Not longer than it may be: while the platform was stopped, it was not alive."""
    since_opened_s = (unit.now - (episode.opened_at or unit.now)).total_seconds()
    return min(since_opened_s, _limit_s(run))


def _limit_s(run: RunRecord) -> float:
    """From the opening of an episode."""
    return run.spec.episode_deadline_s + MARGIN_S
