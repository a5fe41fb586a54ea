"""Runs that play against themselves, in the planner's transactions: an answer that is a proposal is ordered
as a new task, one group plays it, and once all proposals of a group are measured that group is offered to the
trainer with what each is paid.

All of it follows from rows: what is not answered when a process ends is answered after its restart, and a
group whose proposals cannot be measured is left out by name. Nothing waits in a process.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from episodes import GroupReason
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.new_tasks import NewTaskRow, NewTaskState, order_seed
from scenario_runner.domain.plan import open_group_limit, run_seed
from scenario_runner.domain.runs import OPEN_RUN_STATES, EpisodeRow, EpisodeState, GroupRow, RunRecord
from scenario_runner.domain.self_play import (
    LEAST_COMPARED,
    attempt_that_leaves,
    num_that_may_propose,
    paid,
    proposes,
    roles,
)
from scenario_runner.domain.source_groups import SourceGroup, SourceGroupState
from scenario_runner.domain.sources import Offer, rewarded

log = logging.getLogger(__name__)

_NOT_KNOWN: Final = (NewTaskState.WANTED, NewTaskState.PLAYING)
"""States of a proposal of which it is not known how many solve it, or that it will not be played."""


def is_proposer(unit: PlanUnit, run: RunRecord, row: EpisodeRow | GroupRow) -> bool:
    """Whether an episode, or a group, proposes tasks."""
    return roles(run.spec) is not None and proposes(run.spec, unit.task_of(row).scenario, row.new_task)


def note_graded(unit: PlanUnit, run: RunRecord, episode: EpisodeRow) -> None:
    """Order the task that an episode proposes. In the transaction that grades it, so that no crash forgets an
    order or gives it twice."""
    played = roles(run.spec)
    if played is not None and episode.success and is_proposer(unit, run, episode):
        _order(unit, run, episode, played.solver, solved=True)


def _order(unit: PlanUnit, run: RunRecord, episode: EpisodeRow, solver: str, *, solved: bool) -> None:
    """solved: the episode proposes a task of the solver; else it failed one, and leaves another."""
    parent, (_, number) = unit.task_of(episode), unit.new_tasks.ordered(run.run_id)
    order = NewTaskRow(
        run_id=run.run_id,
        number=number,
        taskset=episode.taskset,
        task_position=episode.task_position,
        scenario=solver,
        family=parent.family,
        seed=order_seed(run_seed(run), number),
        parent_slug=parent.slug,
        parent_digest=parent.digest,
        parent_args=parent.args_json,
        solved=solved,
        proposed_by=episode.episode_id,
    )
    unit.new_tasks.add(order)


def note_ended(unit: PlanUnit, run_id: str, group_id: str) -> None:
    """An attempt at a proposal was graded, or failed for good: measure the proposal once there is no
    other."""
    run, group = unit.run(run_id), unit.group(group_id)
    if run is None or group is None or group.new_task is None or roles(run.spec) is None:
        return
    if all(row.state is not EpisodeState.PLANNED for row in unit.members(group_id)):
        _measure(unit, run, group.new_task, group_id)


def note_closed(unit: PlanUnit, run: RunRecord, group: GroupRow) -> None:
    """A group is over, however it ended."""
    if roles(run.spec) is None:
        return
    if group.new_task is not None:
        _measure(unit, run, group.new_task, group.group_id)
    elif is_proposer(unit, run, group):
        offer_if_measured(unit, run, group.group_id)


def _measure(unit: PlanUnit, run: RunRecord, number: int, group_id: str) -> None:
    """group_id: of the group that played the task."""
    row = unit.new_tasks.of(run.run_id, number)
    if row.state is not NewTaskState.PLAYING:
        return
    measured = row.measured()
    unit.new_tasks.update(measured)
    extra = {"run_id": run.run_id, "task": row.slug, "why": measured.detail}
    log.info("proposal_measured", extra=extra)
    answered(unit, run, measured)
    _order_left_over(unit, run, measured, group_id)


def _order_left_over(unit: PlanUnit, run: RunRecord, row: NewTaskRow, group_id: str) -> None:
    """Order what a failed attempt at a task leaves. In the transaction that measures the task, so that no
    crash forgets an order or gives it twice."""
    played = roles(run.spec)
    if played is None or run.state not in OPEN_RUN_STATES or _order_of(unit, row) >= played.order:
        return
    failed = attempt_that_leaves(unit.members(group_id))
    if failed is not None:
        _order(unit, run, failed, played.solver, solved=False)


def _order_of(unit: PlanUnit, row: NewTaskRow) -> int:
    """1 of a proposal; one more of what a failed attempt at it left, and so on."""
    order, episode = 1, unit.episode(row.proposed_by)
    while episode is not None and episode.new_task is not None:
        order += 1
        episode = unit.episode(unit.new_tasks.of(row.run_id, episode.new_task).proposed_by)
    return order


def answered(unit: PlanUnit, run: RunRecord, row: NewTaskRow) -> None:
    """What became of a proposal is known. What a failed attempt left is paid to no proposer."""
    episode = unit.episode(row.proposed_by) if row.proposed_by else None
    if episode is not None and episode.new_task is None:
        offer_if_measured(unit, run, episode.group_id)


def offer_if_measured(unit: PlanUnit, run: RunRecord, group_id: str) -> None:
    """Queue a proposer's group for the trainer, once: when it is over and no proposal of it is open."""
    newest, group = unit.run(run.run_id) or run, unit.group(group_id)
    if group is None or group.is_open or newest.state not in OPEN_RUN_STATES:
        return
    members = rewarded(unit.members(group_id))
    proposed = unit.new_tasks.proposed_by(run.run_id, [row.episode_id for row in members])
    if not members or any(row.state in _NOT_KNOWN for row in proposed):
        return
    if unit.source_groups.one(run.run_id, group_id) is not None:
        return
    fits = len(paid(members, proposed, _alpha(run))) >= LEAST_COMPARED
    queued = SourceGroup(
        group_id,
        run.run_id,
        run.run_id,
        SourceGroupState.WAITING if fits else SourceGroupState.LEFT_OUT,
        unit.now,
        reason="" if fits else GroupReason.INCOMPLETE_GROUP,
        step=newest.step,
        settled_at=None if fits else unit.now,
    )
    unit.source_groups.add([queued])


def paid_members(unit: PlanUnit, run: RunRecord, group_id: str) -> list[EpisodeRow]:
    """The members of a proposer's group that train, with what each is paid."""
    members = rewarded(unit.members(group_id))
    proposed = unit.new_tasks.proposed_by(run.run_id, [row.episode_id for row in members])
    return paid(members, proposed, _alpha(run))


def offer_of_proposals(unit: PlanUnit, run: RunRecord, group_id: str) -> Offer | None:
    """None when the plan does not have the group."""
    group = unit.group(group_id)
    if group is None:
        return None
    task = unit.task_of(group)
    return Offer(
        group_id=group_id,
        source_run_id=run.run_id,
        group_size=run.spec.group_size,
        taskset=group.taskset,
        split=unit.splits([task.digest])[task.digest],
        task_digest=task.digest,
        is_before_start=False,
        members=paid_members(unit, run, group_id),
    )


def drawn(unit: PlanUnit, run: RunRecord, positions: Sequence[int]) -> dict[int, NewTaskRow]:
    """The proposals that the next groups play, before anything else: their versions age."""
    if roles(run.spec) is None:
        return {}
    return dict(zip(positions, unit.new_tasks.unplayed(run.run_id, len(positions)), strict=False))


def num_before_proposers(unit: PlanUnit, run: RunRecord, groups: Sequence[GroupRow]) -> int:
    """How many of the next groups may begin: all up to the first that proposes and may not yet. It waits for
    proposals to be played, and what comes after it keeps its turn."""
    played = roles(run.spec)
    if played is None:
        return len(groups)
    unit.flush()
    limit, size = open_group_limit(run, 1), run.spec.group_size
    pending = unit.new_tasks.num_pending(run.run_id) - sum(group.new_task is not None for group in groups)
    num_open = unit.new_tasks.num_open_proposers(run.run_id, played.proposer)
    left = num_that_may_propose(limit, size, pending, num_open)
    for index, group in enumerate(groups):
        if is_proposer(unit, run, group):
            if not left:
                return index
            left -= 1
    return len(groups)


def is_late(unit: PlanUnit, run: RunRecord, row: NewTaskRow) -> bool:
    """Whether a proposal is asked for no more: its environment could not be reached for as long as an episode
    of the run may take. Its group is offered without it."""
    episode = unit.episode(row.proposed_by) if row.proposed_by else None
    if episode is None or episode.graded_at is None:
        return False
    return unit.now - episode.graded_at > timedelta(seconds=run.spec.episode_deadline_s)


def _alpha(run: RunRecord) -> float:
    return run.spec.training.self_play_alpha if run.spec.training is not None else 0.0
