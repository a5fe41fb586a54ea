"""New tasks of a run in the planner's transactions: ordered when a group ends, counted, drawn, and reported.

`generating` has their environments make them, outside of any transaction.
"""

import logging
from collections.abc import Iterable, Sequence

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.new_tasks import (
    MAX_ORDERED,
    NewTaskRow,
    NewTasksReport,
    NewTaskState,
    most_open,
    order_seed,
    orders_one,
    turns_of_new,
)
from scenario_runner.domain.plan import run_seed
from scenario_runner.domain.runs import GroupRow, RunRecord, RunState
from scenario_runner.domain.task_sampler import draw_tasks
from upcycle.run_config.names import SPREAD

log = logging.getLogger(__name__)

OFF = "off"


def makes_new_tasks(run: RunRecord) -> bool:
    """Whether a run has new tasks made."""
    training = run.spec.training
    return training is not None and (training.new_tasks != OFF or bool(training.self_play))


def order_after(unit: PlanUnit, group: GroupRow, outcome: str) -> None:
    """Order a new task of that of a group that just ended, if its run does so of one that ended so.

    In the transaction that ends the group, so that no crash forgets an order or gives it twice. What taught
    nothing with guidance in its prompt is not ordered of again."""
    run = unit.run(group.run_id)
    training = run.spec.training if run is not None else None
    if run is None or training is None or training.new_tasks == OFF or group.guided_after:
        return
    successes = [row.success for row in unit.members(group.group_id) if row.graded_at is not None]
    if run.state is not RunState.RUNNING or not orders_one(training, outcome, successes):
        return
    num_ordered, number = unit.new_tasks.ordered(run.run_id)
    num_open = unit.new_tasks.num_open(run.run_id, group.taskset)
    if num_ordered >= MAX_ORDERED or num_open >= most_open(training):
        return
    parent = unit.task_of(group)
    order = NewTaskRow(
        run_id=run.run_id,
        number=number,
        taskset=group.taskset,
        task_position=group.task_position,
        scenario=parent.scenario,
        family=parent.family,
        seed=order_seed(run_seed(run), number),
        parent_slug=parent.slug,
        parent_digest=parent.digest,
        parent_args=parent.args_json,
        solved=all(successes),
    )
    unit.new_tasks.add(order)
    log.info("task_ordered", extra={"run_id": run.run_id, "number": number, "parent": parent.slug})


def drawn(unit: PlanUnit, run: RunRecord, positions: Sequence[int]) -> dict[int, NewTaskRow]:
    """The new tasks that groups at some of these positions play: none where there are none yet, or the share
    is used up. Those are drawn more often whose groups have a spread."""
    training = run.spec.training
    if training is None or training.new_tasks == OFF:
        return {}
    turns = turns_of_new(training.new_tasks_share, positions)
    if not turns:
        return {}
    playing = unit.new_tasks.in_state(run.run_id, NewTaskState.PLAYING, most_open(training))
    if not playing:
        return {}
    chosen = draw_tasks(SPREAD, run_seed(run), [row.past for row in playing], turns)
    return {position: playing[index] for position, index in zip(turns, chosen, strict=True)}


def note_planned(unit: PlanUnit, groups: Iterable[GroupRow]) -> None:
    """Count groups that were just planned for their new tasks."""
    for group in groups:
        if group.new_task is not None:
            row = unit.new_tasks.of(group.run_id, group.new_task)
            unit.new_tasks.update(row.planned(group.position))


def note_graded(unit: PlanUnit, run_id: str, number: int, *, success: bool) -> None:
    """Count an episode that was graded without guidance."""
    unit.new_tasks.update(unit.new_tasks.of(run_id, number).graded(success=success))


def note_closed(unit: PlanUnit, run: RunRecord, group: GroupRow, outcome: str) -> None:
    """Count a group that ended. With guidance it says nothing of whether the task is still worth playing."""
    training = run.spec.training
    if group.new_task is None or group.guided_after or training is None:
        return
    row = unit.new_tasks.of(run.run_id, group.new_task)
    closed = row.closed(outcome, training.new_tasks_retire_after)
    unit.new_tasks.update(closed)
    if closed.state is not row.state:
        log.info("new_task_retired", extra={"run_id": run.run_id, "task": row.slug, "why": closed.detail})


def report_of(unit: PlanUnit, run: RunRecord) -> NewTasksReport | None:
    """What became of a run's new tasks; None where it has none made."""
    return unit.new_tasks.report(run.run_id) if makes_new_tasks(run) else None
