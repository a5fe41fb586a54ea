"""Guidance after failure: a task that all failed is attempted once more, with guidance in its prompt."""

from identities.entities import group_id
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.facts import GroupSettled
from scenario_runner.domain.guidance import attempt_to_guide_after, wants_guidance
from scenario_runner.domain.runs import GroupRow
from scenario_runner.usecases.new_groups import add_groups, num_wanted


def guide_after(unit: PlanUnit, group: GroupRow, fact: GroupSettled) -> None:
    """Open a guided group for the task of a group that just ended, if its run does so and may open one.

    In the transaction that ends the group, so that no crash forgets one or opens two. It takes the place of
    the group that ended; a run that is paused, or ends, opens none.
    """
    run = unit.run(group.run_id)
    if run is None or not wants_guidance(run, group, fact):
        return
    failed = attempt_to_guide_after(unit.members(group.group_id))
    if failed is None or not num_wanted(unit, run, 1):
        return
    guided = GroupRow(
        group_id=group_id(run.run_id, run.next_position),
        run_id=run.run_id,
        position=run.next_position,
        task_position=group.task_position,
        expected_members=run.spec.group_size,
        taskset=group.taskset,
        guided_after=failed.episode_id,
        new_task=group.new_task,
    )
    add_groups(unit, run, [guided])
