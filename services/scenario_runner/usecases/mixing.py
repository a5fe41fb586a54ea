"""Runs on several tasksets: which tasksets they are, and what came of the groups of each."""

from collections.abc import Iterable
from dataclasses import replace

from episodes import Purpose
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.mixes import MixedRow, MixReport, gives_nothing, row_of, shares_of, tasksets_of
from scenario_runner.domain.runs import EpisodeRow, GroupRow, RunRecord
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY


def note_planned(unit: PlanUnit, run: RunRecord, groups: Iterable[GroupRow]) -> None:
    """Count groups that were just planned for their tasksets."""
    for group in groups if run.spec.mix else ():
        row = _row(unit, run, group.taskset)
        unit.mixes.update(row.planned(guided=bool(group.guided_after), new=group.is_new))


def note_graded(unit: PlanUnit, run: RunRecord, taskset: str, reward: float, *, success: bool) -> None:
    """Count an episode that was graded without guidance."""
    if run.spec.mix:
        unit.mixes.update(_row(unit, run, taskset).graded(reward, success=success))


def has_solution(unit: PlanUnit, run: RunRecord, episode: EpisodeRow) -> bool:
    """Whether its reward counts. Of tasks that train all have one: registration sees to that."""
    return run.spec.purpose is not Purpose.EVAL or unit.task_of(episode).family != IMPOSSIBLE_FAMILY


def note_closed(unit: PlanUnit, run: RunRecord, taskset: str, outcome: str) -> None:
    """Count a group that ended."""
    if run.spec.mix:
        unit.mixes.update(_row(unit, run, taskset).closed(outcome))


def take_revisions(unit: PlanUnit, run: RunRecord) -> None:
    """Each taskset of a run without a step limit gives its next groups from its newest revision, unless the
    run asked for `name@n`."""
    for row, asked in zip(unit.mixes.of(run.run_id), tasksets_of(run.spec), strict=True):
        newest = unit.taskset(asked)
        if newest is not None and newest.key != row.taskset:
            unit.mixes.update(replace(row, taskset=newest.key, num_tasks=newest.num_tasks))


def mix_of(unit: PlanUnit, run: RunRecord) -> tuple[MixReport, ...]:
    """The tasksets of a run, its own one first; empty where it plays one."""
    if not run.spec.mix:
        return ()
    return tuple(map(MixReport, unit.mixes.of(run.run_id), shares_of(run.spec)))


def idle_outcomes(unit: PlanUnit, run: RunRecord) -> dict[str, list[str]]:
    """How the groups ended of each taskset that trains no more, since its last one that did."""
    prompts = run.spec.training.prompts_per_step if run.spec.training is not None else 1
    idle = [one.row for one in mix_of(unit, run) if gives_nothing(one, prompts)]
    return {row.name: unit.mixes.newest_outcomes(run.run_id, row.taskset, row.num_in_a_row) for row in idle}


def digest_of_source(unit: PlanUnit, run: RunRecord, taskset: str) -> str:
    """Of the code that judges the episodes of a taskset of the run, which this key is a revision of."""
    return _row(unit, run, taskset).source_digest if run.spec.mix else run.source_digest


def environments_of(unit: PlanUnit, run: RunRecord) -> set[str]:
    """Names of the environments that a run plays."""
    found = [unit.taskset(name) for name in tasksets_of(run.spec)]
    return {taskset.source.name for taskset in found if taskset is not None}


def _row(unit: PlanUnit, run: RunRecord, taskset: str) -> MixedRow:
    return row_of(unit.mixes.of(run.run_id), taskset)
