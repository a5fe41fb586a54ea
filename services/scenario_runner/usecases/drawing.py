"""Training runs draw groups of evaluations: a group is offered, and settled or released.

Only the planner decides which run may draw a group, so a group is with one trainer at a time and trains at
most once. The evaluation's own rows and counts never change by it: what became of a drawn group is a row of
its own.
"""

import logging
from dataclasses import replace

from scenario_runner.domain.drawn import Draw, DrawState, EndedGroup
from scenario_runner.domain.facts import GroupSettled
from scenario_runner.domain.runs import GroupRow, RunRecord, Split
from scenario_runner.domain.sources import (
    ALREADY_TRAINED,
    DrawRules,
    Offer,
    draws_online,
    ended_group,
    misfit,
    rewarded,
)
from scenario_runner.ports import PlanUnit
from upcycle.run_config import Purpose

log = logging.getLogger(__name__)


def note_ended(unit: PlanUnit, source: RunRecord, group: GroupRow) -> None:
    """An evaluation is done with a group: it waits for the training run that may draw it, if there is one."""
    if not source.spec.trainable:
        return
    unit.draws.add(
        [
            Draw(group.group_id, run.run_id, source.run_id, DrawState.WAITING, unit.now)
            for run in unit.draws.open_runs(source.spec.policy.model, Purpose.TRAIN)
            if draws_online(run, source)
        ]
    )


def offer(unit: PlanUnit, run: RunRecord, free: int, limit: int) -> int:
    """Look at up to `limit` waiting groups in order and offer up to `free` of them; returns how many were
    offered or left out."""
    waiting = unit.draws.waiting(run.run_id, min(free, limit))
    if not waiting:
        return 0
    group_ids = [draw.group_id for draw in waiting]
    taken = unit.draws.taken(group_ids)
    unit.prefetch(group_ids)
    looked_at = []
    for draw in waiting:
        reason = ALREADY_TRAINED if draw.group_id in taken else _offer_one(unit, run, draw)
        if reason:
            looked_at.append(replace(draw, state=DrawState.LEFT_OUT, reason=reason, settled_at=unit.now))
        else:
            looked_at.append(replace(draw, state=DrawState.OFFERED, offered_at=unit.now))
    unit.draws.update(looked_at)
    num_offered = sum(draw.state is DrawState.OFFERED for draw in looked_at)
    log.info(
        "groups_offered",
        extra={"run_id": run.run_id, "offered": num_offered, "left_out": len(looked_at) - num_offered},
    )
    return len(looked_at)


def _offer_one(unit: PlanUnit, run: RunRecord, draw: Draw) -> str:
    """Announce the offer; returns why the group may not train, else nothing."""
    source, group = unit.draws.source_run(draw.source_run_id), unit.group(draw.group_id)
    if source is None or group is None:
        return "incomplete_group"
    members = rewarded(unit.members(draw.group_id))
    ended = ended_group(EndedGroup(draw.group_id, draw.ended_at, group.outcome, 0), members)
    is_before_start = source.run_id in run.spec.source_runs
    task = unit.tasks(group.taskset, [group.task_position])[group.task_position]
    # A task may have been claimed since the evaluation was submitted, so its side is looked up now.
    split = unit.splits([task.digest])[task.digest]
    # The versions of a source run were looked at when the run was submitted.
    reason = misfit(ended, rules_for(unit, run, source, split))
    if reason:
        return reason
    offered = Offer(source, group, split, task.digest, is_before_start, members)
    unit.announce_offered(run, offered)
    return ""


def rules_for(unit: PlanUnit, run: RunRecord, source: RunRecord, split: Split) -> DrawRules:
    """What a group of an evaluation must be to train in a run, whatever its versions. split: of its task."""
    training = run.spec.training
    played, own = unit.taskset(source.spec.taskset), unit.taskset(run.spec.taskset)
    return DrawRules(
        split=split,
        is_same_environment=(
            played is not None and own is not None and played.source.name == own.source.name
        ),
        group_size=source.spec.group_size,
        prompts_per_step=training.prompts_per_step if training else 1,
    )


def settle_drawn(unit: PlanUnit, run: RunRecord, fact: GroupSettled) -> None:
    """The trainer's answer to an offer. It frees the slot; the evaluation's rows stay as they are.

    `trained` counts even after the planner released the group itself, as the gradient was taken: so the group
    is never offered again. In every other case the first answer stands.
    """
    draw = unit.draws.one(run.run_id, fact.group_id)
    if draw is None or draw.source_run_id != fact.source_run_id:
        return
    is_trained = fact.outcome == "trained"
    if draw.state is DrawState.RELEASED and is_trained and unit.draws.taken([draw.group_id]):
        log.error("trained_after_release", extra={"run_id": run.run_id, "group_id": draw.group_id})
        return
    if draw.state is DrawState.OFFERED or (draw.state is DrawState.RELEASED and is_trained):
        unit.draws.update([_answered(unit, run, draw, fact)])


def _answered(unit: PlanUnit, run: RunRecord, draw: Draw, fact: GroupSettled) -> Draw:
    if fact.outcome == "trained":
        return replace(draw, state=DrawState.TRAINED, reason="", step=fact.step, settled_at=unit.now)
    return replace(draw, state=DrawState.RELEASED, reason=fact.reason, step=run.step, settled_at=unit.now)


def announce_released(unit: PlanUnit, run: RunRecord) -> int:
    """Publish `group.settled` for every offer that the trainer has not answered and will not.

    Returns how many. The rows change when these facts, or those of the trainer that were first, come back
    from the stream: another planner may hold an answer that this one has not read.
    """
    if run.spec.training is None:
        return 0
    offered = unit.draws.offered(run.run_id)
    unit.prefetch([draw.group_id for draw in offered])
    for draw in offered:
        members = [row.episode_id for row in rewarded(unit.members(draw.group_id))]
        unit.announce_settled_instead(run, draw.group_id, members, draw.source_run_id)
    return len(offered)
