"""Offers: groups of evaluations that a training run may train on are offered to its trainer, which settles
them.

Only the planner decides to which run a group is offered, so at most one trainer has it, and it trains at most
once. The rows and counts of the evaluation do not change: what became of an offered group is a row of
`source_group`.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from episodes import GroupOutcome, GroupReason, Purpose, Split
from identities.entities import is_recorded_run
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.facts import GroupSettled
from scenario_runner.domain.runs import EpisodeRow, GroupRow, RunRecord
from scenario_runner.domain.source_groups import EndedGroup, SourceGroup, SourceGroupState
from scenario_runner.domain.sources import DrawRules, Offer, ended_group, may_train_on, rewarded, why_unfit
from scenario_runner.usecases.mixing import environments_of, note_closed
from scenario_runner.usecases.self_play import offer_of_proposals, paid_members
from scenario_runner.usecases.session_groups import offer_of_sessions, why_held_out

log = logging.getLogger(__name__)


def add_waiting(unit: PlanUnit, source: RunRecord, group: GroupRow) -> None:
    """An evaluation is done with a group: queue it for the training run that may train on it, if any."""
    if not source.spec.trainable:
        return
    unit.source_groups.add(
        [
            SourceGroup(group.group_id, run.run_id, source.run_id, SourceGroupState.WAITING, unit.now)
            for run in unit.source_groups.open_runs(source.spec.policy.model, Purpose.TRAIN)
            if may_train_on(run, source)
        ]
    )


def offer(unit: PlanUnit, run: RunRecord, free: int, limit: int) -> int:
    """Look at up to `limit` waiting groups in order and offer up to `free` of them; returns how many were
    offered or left out."""
    waiting = unit.source_groups.waiting(run.run_id, min(free, limit))
    if not waiting:
        return 0
    group_ids = [candidate.group_id for candidate in waiting]
    taken = unit.source_groups.taken(group_ids)
    unit.prefetch(group_ids)
    looked_at = []
    for candidate in waiting:
        is_taken = candidate.group_id in taken
        reason = GroupReason.ALREADY_TRAINED if is_taken else _offer_one(unit, run, candidate)
        if reason:
            left_out = SourceGroupState.LEFT_OUT
            looked_at.append(replace(candidate, state=left_out, reason=reason, settled_at=unit.now))
        else:
            looked_at.append(replace(candidate, state=SourceGroupState.OFFERED, offered_at=unit.now))
    unit.source_groups.update(looked_at)
    num_offered = sum(one.state is SourceGroupState.OFFERED for one in looked_at)
    extra = {"run_id": run.run_id, "offered": num_offered, "left_out": len(looked_at) - num_offered}
    log.info("groups_offered", extra=extra)
    return len(looked_at)


def offer_again(unit: PlanUnit, run: RunRecord, group_ids: Collection[str]) -> int:
    """Announce offers once more that the trainer has not answered, from the rows of the evaluations.

    Returns how many; a group that is answered by now is none of them.
    """
    unanswered = [one for one in unit.source_groups.offered(run.run_id) if one.group_id in group_ids]
    unit.prefetch([candidate.group_id for candidate in unanswered])
    num_offers = 0
    for candidate in unanswered:
        offered = _offer_of(unit, run, candidate)
        if offered is None:
            extra = {"run_id": run.run_id, "group_id": candidate.group_id}
            log.error("offer_without_its_evaluation", extra=extra)
            continue
        unit.announce_offered(run, offered, offered_before=candidate.offered_at or unit.now)
        num_offers += 1
    return num_offers


def _offer_one(unit: PlanUnit, run: RunRecord, candidate: SourceGroup) -> str:
    """Announce the offer; returns why the group may not train, else nothing."""
    offered = _offer_of(unit, run, candidate)
    if offered is None:
        return GroupReason.INCOMPLETE_GROUP
    is_of_sessions = is_recorded_run(candidate.source_run_id)
    is_apart = is_of_sessions or candidate.source_run_id == run.run_id
    reason = why_held_out(offered) if is_apart else _why_unfit(unit, run, candidate, offered)
    if not reason:
        unit.announce_offered(run, offered)
    return reason


def _why_unfit(unit: PlanUnit, run: RunRecord, candidate: SourceGroup, offered: Offer) -> str:
    source, group = unit.source_groups.source_run(candidate.source_run_id), unit.group(candidate.group_id)
    if source is None or group is None:
        return GroupReason.INCOMPLETE_GROUP
    known = EndedGroup(candidate.group_id, candidate.ended_at, group.outcome, 0)
    # The versions of a source run were looked at when the run was submitted.
    rules = rules_for(unit, run, source, offered.split)
    return why_unfit(ended_group(known, offered.members), rules)


def _offer_of(unit: PlanUnit, run: RunRecord, candidate: SourceGroup) -> Offer | None:
    """None when the plan does not have the evaluation or its group."""
    if is_recorded_run(candidate.source_run_id):
        return offer_of_sessions(unit, run, candidate)
    if candidate.source_run_id == run.run_id:
        return offer_of_proposals(unit, run, candidate.group_id)
    source, group = unit.source_groups.source_run(candidate.source_run_id), unit.group(candidate.group_id)
    if source is None or group is None:
        return None
    task = unit.tasks(group.taskset, [group.task_position])[group.task_position]
    # A task may have been claimed since the evaluation was submitted, so its side is looked up now.
    split = unit.splits([task.digest])[task.digest]
    is_before_start = source.run_id in run.spec.source_runs
    members = rewarded(unit.members(candidate.group_id))
    size, taskset = source.spec.group_size, group.taskset
    return Offer(group.group_id, source.run_id, size, taskset, split, task.digest, is_before_start, members)


def rules_for(unit: PlanUnit, run: RunRecord, source: RunRecord, split: Split) -> DrawRules:
    """What a group of an evaluation must be to train in a run, whatever its versions. split: of its task."""
    training = run.spec.training
    played = unit.taskset(source.spec.taskset)
    return DrawRules(
        split=split,
        is_same_environment=(played is not None and played.source.name in environments_of(unit, run)),
        group_size=source.spec.group_size,
        prompts_per_step=training.prompts_per_step if training else 1,
    )


def settle_offer(unit: PlanUnit, run: RunRecord, fact: GroupSettled) -> None:
    """Apply the trainer's `group.settled` for an offer. Another group may open; the evaluation's rows do not
    change.

    `trained` counts even after the planner released the group itself: the gradient was taken, so the group
    must not be offered again. In every other case the first `group.settled` counts.
    """
    group = unit.source_groups.one(run.run_id, fact.group_id)
    if group is None or group.source_run_id != fact.source_run_id:
        return
    is_trained = fact.outcome == GroupOutcome.TRAINED
    is_released = group.state is SourceGroupState.RELEASED
    if is_released and is_trained and unit.source_groups.taken([group.group_id]):
        log.error("trained_after_release", extra={"run_id": run.run_id, "group_id": group.group_id})
        return
    if group.state is SourceGroupState.OFFERED or (is_released and is_trained):
        unit.source_groups.update([_settled(unit, run, group, fact)])
        proposed = unit.group(group.group_id) if group.source_run_id == run.run_id else None
        if proposed is not None:
            note_closed(unit, run, proposed.taskset, fact.outcome)


def _settled(unit: PlanUnit, run: RunRecord, group: SourceGroup, fact: GroupSettled) -> SourceGroup:
    settled = replace(group, settled_at=unit.now)
    if fact.outcome == GroupOutcome.TRAINED:
        return replace(settled, state=SourceGroupState.TRAINED, reason="", step=fact.step)
    return replace(settled, state=SourceGroupState.RELEASED, reason=fact.reason, step=run.step)


def announce_released(unit: PlanUnit, run: RunRecord) -> int:
    """Publish `group.settled` for every offer that the trainer has not answered and will not.

    Returns how many. The rows change when these facts, or those of the trainer that were first, come back
    from the stream: another planner may hold an answer that this one has not read.
    """
    if run.spec.training is None:
        return 0
    offered = unit.source_groups.offered(run.run_id)
    unit.prefetch([candidate.group_id for candidate in offered])
    for candidate in offered:
        members = [row.episode_id for row in _offered_members(unit, run, candidate)]
        unit.announce_settled(run, candidate.group_id, members, candidate.source_run_id)
    return len(offered)


def _offered_members(unit: PlanUnit, run: RunRecord, candidate: SourceGroup) -> Sequence[EpisodeRow]:
    if is_recorded_run(candidate.source_run_id):
        return unit.sessions.members(run.run_id, candidate.group_id)
    if candidate.source_run_id == run.run_id:
        return paid_members(unit, run, candidate.group_id)
    return rewarded(unit.members(candidate.group_id))
