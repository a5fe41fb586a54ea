"""Recorded sessions as batches of a training run: looked at and taken at its submission, in a run with
`sessions_idle_s` also as they get their rewards, and offered as groups of evaluations are.

The transaction that takes sessions puts their first prompts on the side of training data, so that no taskset
holds one of them out later.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from episodes import GroupReason, Split
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.recorded_sessions import (
    REMEDIES,
    GradedSession,
    SessionGroup,
    SessionRules,
    grouped,
)
from scenario_runner.domain.runs import Refused, RunRecord
from scenario_runner.domain.source_groups import SourceGroup, SourceGroupState
from scenario_runner.domain.sources import Offer, in_words
from upcycle.run_config.names import BATCH_BASELINE


def take_sessions(
    unit: PlanUnit, run: RunRecord, sessions: Sequence[GradedSession], head_version: int, gather: timedelta
) -> None:
    """Look at all graded sessions that the run's query matches: the groups that fit wait to be offered, all
    others are left out by name. Raises Refused where none fits, and none is waited for."""
    if not run.spec.sessions:
        return
    if run.spec.sessions_idle_s:
        take_arrived(unit, run, sessions, gather, head_version)
        return
    groups = grouped(sessions, _rules(unit, run, sessions, head_version))
    fit = [group for group in groups if not group.reason]
    if not fit:
        raise Refused(_nothing_fits(run, sessions, groups))
    _take(unit, run, groups)
    unit.sessions.add(run.run_id, fit)


def take_arrived(
    unit: PlanUnit,
    run: RunRecord,
    sessions: Sequence[GradedSession],
    gather: timedelta,
    head_version: int | None = None,
) -> int:
    """Of a run that takes sessions as they come: look at each of them once. Groups that others may join wait.
    gather: how long, from their first reward. Returns how many groups fit."""
    seen = unit.sessions.seen(run.run_id, {session.episode_id for session in sessions})
    new = [session for session in sessions if session.episode_id not in seen]
    since = unit.now - min(gather, timedelta(seconds=run.spec.sessions_idle_s) / 2)
    groups = grouped(new, _rules(unit, run, new, head_version))
    gathered = [group for group in groups if group.is_gathered(run.spec.group_size, since)]
    _take(unit, run, gathered)
    unit.sessions.add(run.run_id, gathered)
    return sum(not group.reason for group in gathered)


def _take(unit: PlanUnit, run: RunRecord, groups: Sequence[SessionGroup]) -> None:
    digests = {group.task_digest for group in groups if not group.reason}
    unit.claim(digests, Split.TRAIN, f"recorded sessions of {run.run_id}")
    unit.source_groups.add([_candidate(unit, run, group) for group in groups])


def _rules(
    unit: PlanUnit, run: RunRecord, sessions: Sequence[GradedSession], head_version: int | None
) -> SessionRules:
    training = run.spec.training
    sides = unit.splits({session.task_digest for session in sessions})
    held_out = {digest for digest, split in sides.items() if split.never_trains}
    # A prompt that one reward holds out is held out in all sessions that begin with it.
    held_out |= {session.task_digest for session in sessions if session.split.never_trains}
    return SessionRules(
        taken=unit.sessions.taken({session.episode_id for session in sessions}),
        held_out=held_out,
        prompts_per_step=training.prompts_per_step if training else 1,
        head_version=head_version,
        has_batch_baseline=training is not None and training.single_sessions == BATCH_BASELINE,
    )


def _candidate(unit: PlanUnit, run: RunRecord, group: SessionGroup) -> SourceGroup:
    return SourceGroup(
        group.group_id,
        run.run_id,
        group.source_run_id,
        SourceGroupState.LEFT_OUT if group.reason else SourceGroupState.WAITING,
        group.ended_at,
        reason=group.reason,
        settled_at=unit.now if group.reason else None,
    )


def _nothing_fits(run: RunRecord, sessions: Sequence[GradedSession], groups: Sequence[SessionGroup]) -> str:
    asked, model = run.spec.sessions, run.spec.policy.model
    if not sessions:
        return (
            f"sessions {asked!r}: no graded recorded session of model {model!r} that no run has trained "
            "matches; `upcycle trajectories list --run sessions-KEY` lists those of an API key, and POST "
            "/v1/sessions/<id>/reward grades one"
        )
    counts = Counter(group.reason for group in groups)
    ways_out = [REMEDIES[reason] for reason, _ in counts.most_common() if reason in REMEDIES]
    return (
        f"sessions {asked!r}: of {len(sessions)} graded sessions of {model!r}, in {len(groups)} groups, none "
        f"can train: {in_words(counts)}; {'; '.join(ways_out)}"
    )


def offer_of_sessions(unit: PlanUnit, run: RunRecord, candidate: SourceGroup) -> Offer | None:
    """None when the plan does not have the group."""
    members = unit.sessions.members(run.run_id, candidate.group_id)
    if not members:
        return None
    digest = unit.sessions.task_digest(run.run_id, candidate.group_id)
    return Offer(
        group_id=candidate.group_id,
        source_run_id=candidate.source_run_id,
        group_size=len(members),
        taskset="",
        split=unit.splits([digest])[digest],
        task_digest=digest,
        is_before_start=candidate.ended_at <= run.submitted_at,
        members=members,
    )


def why_held_out(offered: Offer) -> str:
    """Why a group whose task was training data when it began to wait may not train after all; empty when it
    may."""
    return GroupReason.NONE if offered.split is Split.TRAIN else GroupReason.HELD_OUT
