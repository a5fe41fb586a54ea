"""Seconds that episodes took, counted for their runs."""

from dataclasses import replace
from typing import TypeVar

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.facts import Failed, Graded
from scenario_runner.domain.runs import EpisodeRow, RunRecord

R = TypeVar("R", RunRecord, EpisodeRow)


def with_usage(unit: PlanUnit, run: RunRecord, fact: Graded | Failed) -> RunRecord:
    """The run with the seconds of an episode, whatever its state. Each episode counts once, with the first
    fact that says them."""
    episode = unit.episode(fact.episode_id)
    if episode is None:
        return run
    engine_s = 0.0 if episode.engine_s else fact.engine_s
    environment_s = 0.0 if episode.environment_s else fact.environment_s
    if not (engine_s or environment_s):
        return run
    unit.update_episode(_plus(episode, engine_s, environment_s))
    counted = _plus(run, engine_s, environment_s)
    unit.update_run(counted)
    return counted


def _plus(row: R, engine_s: float, environment_s: float) -> R:
    return replace(row, engine_s=row.engine_s + engine_s, environment_s=row.environment_s + environment_s)
