"""Groups of a run with their episodes: how many to plan now, and planning them in one transaction."""

from collections.abc import Sequence
from dataclasses import replace

from episodes import Purpose
from identities.entities import episode_id
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain import plan
from scenario_runner.domain.runs import EpisodeRow, GroupRow, RunRecord
from scenario_runner.domain.source_groups import NO_SOURCES
from scenario_runner.usecases import new_tasks
from scenario_runner.usecases.mixing import note_planned


def num_wanted(unit: PlanUnit, run: RunRecord, eval_episodes_in_flight: int) -> int:
    """How many groups to plan now."""
    sources = NO_SOURCES if run.spec.purpose is Purpose.EVAL else unit.source_groups.load(run.run_id)
    num_open = unit.num_open_groups(run.run_id)
    limit = open_limit(unit, run, num_open, eval_episodes_in_flight)
    return plan.groups_wanted(run, num_open, limit, sources)


def open_limit(unit: PlanUnit, run: RunRecord, num_open: int, eval_episodes_in_flight: int) -> int:
    """Groups that a run may have open now, offers included."""
    limit = plan.open_group_limit(run, eval_episodes_in_flight)
    if run.spec.training is None:
        return limit
    needed = plan.groups_to_finish(run, num_open, unit.num_in_step(run.run_id, run.step))
    return limit if needed is None else min(limit, needed)


def add_groups(unit: PlanUnit, run: RunRecord, groups: Sequence[GroupRow]) -> None:
    """The next groups of a run, each of whose members is requested."""
    unit.add_groups(groups)
    note_planned(unit, run, groups)
    new_tasks.note_planned(unit, groups)
    members = range(run.spec.group_size)
    unit.add_episodes(run, [episode_of(group, member, 0) for group in groups for member in members])
    planned = replace(
        run,
        next_position=run.next_position + len(groups),
        num_guided=run.num_guided + sum(bool(group.guided_after) for group in groups),
        num_new=run.num_new + sum(group.is_new for group in groups),
    )
    unit.update_run(planned)


def episode_of(group: GroupRow, member: int, attempt: int) -> EpisodeRow:
    """One attempt at a member of a group."""
    return EpisodeRow(
        episode_id(group.group_id, member, attempt),
        group.run_id,
        group.group_id,
        member,
        attempt,
        group.task_position,
        group.taskset,
        guided_after=group.guided_after,
        new_task=group.new_task,
    )
