"""The planner: plans episodes of runs, applies what the stream reports about them, ends runs.

Every function runs in one transaction (a PlanUnit), so each committed state satisfies
requested = settled + in flight.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from episodes import GroupOutcome, Purpose
from identities.entities import group_id
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain import plan
from scenario_runner.domain.explain import UNSETTLED_S
from scenario_runner.domain.facts import (
    Advanced,
    Fact,
    Failed,
    Graded,
    GroupSettled,
    SessionFailed,
    Stopping,
    groups_of,
)
from scenario_runner.domain.recounts import Recount
from scenario_runner.domain.runs import (
    ENDED,
    OPEN_RUN_STATES,
    EpisodeRow,
    EpisodeState,
    GroupRow,
    RunRecord,
    RunState,
)
from scenario_runner.domain.self_play import roles
from scenario_runner.domain.sources import with_body
from scenario_runner.usecases import new_tasks, self_play
from scenario_runner.usecases.completed_steps import (
    believed_step,
    note_tracked,
    refuse_false_step,
    settled_by,
)
from scenario_runner.usecases.ending import (
    MAX_DETAIL_CHARS,
    call_off,
    cancel,
    close_group,
    conclude,
    end_grace_period,
    end_with_last_step,
    end_without_trainer,
    on_stopping,
    settle,
)
from scenario_runner.usecases.futile_runs import (
    end_if_nothing_to_learn,
    end_if_only_failures,
    pause_if_failing,
    settled_without_step,
)
from scenario_runner.usecases.guiding import guide_after
from scenario_runner.usecases.mixing import has_solution, note_graded
from scenario_runner.usecases.new_groups import add_groups, episode_of, num_wanted
from scenario_runner.usecases.next_tasks import next_tasks
from scenario_runner.usecases.offering import add_waiting, settle_offer
from scenario_runner.usecases.overdue import OVERDUE, dispatched_too_long_ago
from scenario_runner.usecases.revisions import take_revision
from scenario_runner.usecases.usage import with_usage

log = logging.getLogger(__name__)
_CLOCKS_DIFFER: Final = timedelta(seconds=60)
"""At most, the planner's and that of the bus."""


@dataclass(frozen=True, slots=True)
class PlanRules:
    """eval_episodes_in_flight: limit of one evaluation. groups_per_transaction: bounds a transaction's
    length. ending_grace_s: how long graded episodes of a cancelled or failed run wait for the trainer, which
    finishes a step; stop_grace_s: the same for a run that ends early, whose trainer also saves it.
    settle_deadline_s: how long a complete group may be unsettled before it is announced again."""

    eval_episodes_in_flight: int = 256
    groups_per_transaction: int = 8
    ending_grace_s: float = 60.0
    stop_grace_s: float = 600.0
    settle_deadline_s: float = UNSETTLED_S


def plan_more(unit: PlanUnit, run_id: str, rules: PlanRules) -> int:
    """Plan the next groups of a run, a few at a time; returns how many, 0 when nothing may be planned now."""
    run = unit.run(run_id)
    if run is None:
        return 0
    count = min(num_wanted(unit, run, rules.eval_episodes_in_flight), rules.groups_per_transaction)
    return _add_groups(unit, take_revision(unit, run), count) if count else 0


def apply_facts(unit: PlanUnit, facts: Iterable[Fact]) -> set[str]:
    """Apply facts in stream order. One that is delivered again, or too late, changes nothing. Returns the
    runs touched. Raises FalseStep."""
    facts = list(facts)
    unit.prefetch({group for fact in facts for group in groups_of(fact)})
    touched: set[str] = set()
    for fact in facts:
        run = unit.run(fact.run_id)
        if run is None or run.removed_at is not None:
            continue
        _apply(unit, run, fact)
        touched.add(run.run_id)
    for run_id in sorted(settled_without_step(facts) | _that_play_themselves(unit, touched)):
        end_if_nothing_to_learn(unit, run_id)
    for run_id in sorted(touched):
        pause_if_failing(unit, run_id)
        conclude(unit, run_id)
    return touched


def _that_play_themselves(unit: PlanUnit, run_ids: Iterable[str]) -> set[str]:
    """Runs whose groups may end without a fact of a trainer: what they propose cannot be played."""
    runs = [unit.run(run_id) for run_id in run_ids]
    return {run.run_id for run in runs if run is not None and roles(run.spec) is not None}


def _apply(unit: PlanUnit, run: RunRecord, fact: Fact) -> None:
    match fact:
        case Graded():
            _on_graded(unit, with_usage(unit, run, fact), fact)
        case Failed():
            _on_failed(unit, with_usage(unit, run, fact), fact)
        case GroupSettled() if fact.source_run_id:
            settle_offer(unit, run, fact)
        case GroupSettled():
            _on_group_settled(unit, run, fact)
        case Advanced():
            _on_advanced(unit, run, fact)
        case Stopping():
            on_stopping(unit, run, fact)
        case SessionFailed():
            text = fact.detail or "no reason given, see its log"
            end_without_trainer(unit, run, f"the trainer gave up ({fact.failure or 'error'}): {text}")


def pause(unit: PlanUnit, run: RunRecord) -> None:
    """Dispatch nothing new. Refills that become due are planned and held back until `resume`."""
    if run.state is RunState.RUNNING:
        unit.update_run(replace(run, state=RunState.PAUSED))


def resume(unit: PlanUnit, run: RunRecord) -> None:
    """Go on where `pause` left off."""
    if run.state is not RunState.PAUSED:
        return
    resumed_at = unit.now if run.failure else run.resumed_at
    running = replace(run, state=RunState.RUNNING, recent_ends="", failure="", resumed_at=resumed_at)
    unit.update_run(running)
    for episode in unit.unsettled(run.run_id):
        if episode.num_dispatches == 0:
            unit.dispatch_again(running, episode)


def sweep(
    unit: PlanUnit,
    run_id: str,
    rules: PlanRules,
    *,
    none_queued_before: datetime | None,
    outcomes: Sequence[Fact] = (),
    counted: Recount | None = None,
) -> None:
    """Handle what is overdue: end episodes by name, dispatch lost ones again, end the grace period.

    none_queued_before: no command that was sent before waits for a sampler, or is with one; None: the bus
    did not say. outcomes: the stored decisions about episodes that were not graded in time. counted: a large
    run that is about to end.
    """
    run = unit.run(run_id)
    if run is None:
        return
    _close_left_open(unit, run_id)
    run = _end_overdue(unit, unit.run(run_id) or run, outcomes)
    pause_if_failing(unit, run_id)
    run = unit.run(run_id) or run
    if none_queued_before is not None and run.state in OPEN_RUN_STATES:
        _dispatch_lost(unit, run, none_queued_before)
    grace = timedelta(seconds=rules.stop_grace_s if run.ends_early else rules.ending_grace_s)
    if run.ending_since is not None and unit.now - unit.watched.began_at(run.ending_since) > grace:
        end_grace_period(unit, run)
    conclude(unit, run_id, counted)


def _close_left_open(unit: PlanUnit, run_id: str) -> None:
    """Close open groups without unsettled members. There should be none; none would ever end."""
    for left_open in unit.left_open(run_id):
        log.warning("group_was_left_open", extra={"group_id": left_open})
        _close_if_empty(unit, run_id, left_open)


def _end_overdue(unit: PlanUnit, run: RunRecord, outcomes: Sequence[Fact]) -> RunRecord:
    """Returns the run as it is then: one more failure may have ended it, and an ended run is not refilled."""
    unit.prefetch({group for fact in outcomes for group in groups_of(fact)})
    for fact in outcomes:
        _apply(unit, run, fact)
        run = unit.run(run.run_id) or run
    return run


def _dispatch_lost(unit: PlanUnit, run: RunRecord, none_queued_before: datetime) -> None:
    """Queue episodes again whose command was lost: all that is left in the queue is younger. A repeat is
    harmless: an episode that is open, or settled, is not opened again."""
    before = min(dispatched_too_long_ago(unit, run), none_queued_before - _CLOCKS_DIFFER)
    for episode in unit.never_opened(run.run_id, before):
        if episode.num_dispatches == 0 and run.state is RunState.PAUSED:
            continue  # held back until the run is resumed
        log.warning("episode_dispatched_again", extra={"episode_id": episode.episode_id})
        unit.dispatch_again(run, episode)


def _add_groups(unit: PlanUnit, run: RunRecord, count: int) -> int:
    groups = [
        GroupRow(
            group_id=group_id(run.run_id, task.position),
            run_id=run.run_id,
            position=task.position,
            task_position=task.task_position,
            expected_members=run.spec.group_size,
            taskset=task.taskset,
            new_task=task.new_task,
        )
        for task in next_tasks(unit, run, count)
    ]
    num_now = self_play.num_before_proposers(unit, run, groups)
    add_groups(unit, run, groups[:num_now])
    return num_now


def _on_graded(unit: PlanUnit, run: RunRecord, fact: Graded) -> None:
    episode = unit.episode(fact.episode_id)
    if episode is None:
        return
    if episode.state is EpisodeState.FAILED and episode.reason == OVERDUE:
        _on_graded_too_late(unit, run, episode, fact)
    elif episode.state is EpisodeState.PLANNED:
        _grade(unit, run, episode, fact)


def _grade(unit: PlanUnit, run: RunRecord, episode: EpisodeRow, fact: Graded) -> None:
    is_final = run.spec.purpose is Purpose.EVAL or self_play.is_proposer(unit, run, episode)
    graded = replace(
        episode,
        state=EpisodeState.EVALUATED if is_final else EpisodeState.GRADED,
        reason=fact.failure,
        detail=fact.detail[:MAX_DETAIL_CHARS],
        reward=fact.reward,
        success=fact.success,
        shadow=fact.shadow,
        guidance_kinds=",".join(fact.guidance_kinds),
        num_turns=fact.num_turns,
        oldest_version=fact.oldest_version,
        newest_version=fact.newest_version,
        graded_at=unit.now,
        settled_at=unit.now if is_final else None,
    )
    if fact.body is not None:
        graded = with_body(graded, fact.body, fact.stop_reason)
    unit.update_episode(graded)
    self_play.note_graded(unit, run, graded)
    ended = run.ended(ENDED)
    # What is done with guidance, on harder or easier tasks, or on tasks without a solution is not what the
    # policy can do on the taskset.
    if episode.new_task is not None and not episode.guided_after:
        new_tasks.note_graded(unit, run.run_id, episode.new_task, success=fact.success)
    elif not episode.guided_after and has_solution(unit, run, episode):
        ended = replace(
            ended,
            num_graded=run.num_graded + 1,
            num_successes=run.num_successes + fact.success,
            reward_sum=run.reward_sum + fact.reward,
        )
        note_graded(unit, run, episode.taskset, fact.reward, success=fact.success)
    unit.update_run(ended)
    group = unit.group(episode.group_id)
    if group is not None:
        unit.update_group(replace(group, num_graded=group.num_graded + 1))
        _close_if_empty(unit, run.run_id, group.group_id)


def _on_graded_too_late(unit: PlanUnit, run: RunRecord, episode: EpisodeRow, fact: Graded) -> None:
    """A planner of an older version, which fails an episode before it is decided, lost to its grader.

    While the group is open, the reward counts and the replacement of the episode is cancelled.
    """
    group = unit.group(episode.group_id)
    is_waited_for = run.state in OPEN_RUN_STATES or run.awaits_trainer
    if group is None or not group.is_open or not is_waited_for:
        unit.announce_cancelled(run, episode, "group_settled")
        return
    newer = [row for row in unit.members(group.group_id) if row.member == episode.member]
    if any(row.state is EpisodeState.GRADED for row in newer):
        unit.announce_cancelled(run, episode, "graded_before")
        return
    for row in newer:
        if row.state is EpisodeState.PLANNED:
            call_off(unit, run, row, "graded_after_all")
    _grade(unit, run, episode, fact)


def _on_failed(unit: PlanUnit, run: RunRecord, fact: Failed) -> None:
    episode = unit.episode(fact.episode_id)
    if episode is not None and episode.state is EpisodeState.PLANNED:
        _fail(unit, run, episode, fact.failure, fact.detail)


def _fail(unit: PlanUnit, run: RunRecord, episode: EpisodeRow, failure: str, detail: str) -> None:
    settle(unit, episode, EpisodeState.FAILED, failure, detail)
    run = (unit.run(run.run_id) or run).ended(plan.how_it_ended(failure))
    unit.update_run(run)
    group = unit.group(episode.group_id)
    if group is None:
        return
    attempt = plan.MAX_ATTEMPTS if failure in plan.PLAYED_ONCE else episode.attempt
    match plan.after_failure(attempt, run.state, group_is_open=group.is_open):
        case plan.Refill(attempt):
            unit.add_episodes(run, [episode_of(group, episode.member, attempt)])
        case plan.Shorten():
            shortened = replace(group, expected_members=group.expected_members - 1)
            unit.update_group(shortened)
            if not self_play.is_proposer(unit, run, shortened):  # the trainer gets it whole, as an offer
                unit.announce_shortened(run, shortened, failure)
            _close_if_empty(unit, run.run_id, group.group_id)
        case None:
            _close_if_empty(unit, run.run_id, group.group_id)


def _close_if_empty(unit: PlanUnit, run_id: str, group_id: str) -> None:
    """A group without unsettled members is over: all of an evaluation's, and one of which every member
    failed.
    """
    self_play.note_ended(unit, run_id, group_id)
    group = unit.group(group_id)
    if group is None or not group.is_open or any(row.is_unsettled for row in unit.members(group_id)):
        return
    run = unit.run(run_id)
    if run is None:
        return
    close_group(unit, run, group, "evaluated" if group.num_graded else "failed")
    if group.num_graded:
        add_waiting(unit, run, group)
    end_if_only_failures(unit, run_id)


def _on_group_settled(unit: PlanUnit, run: RunRecord, fact: GroupSettled) -> None:
    group = unit.group(fact.group_id)
    if group is None or group.run_id != run.run_id or not group.is_open:
        return
    unsettled = [row for row in unit.members(fact.group_id) if row.is_unsettled]
    named = [episode for episode in unsettled if episode.episode_id in fact.episode_ids]
    is_trained = fact.outcome == GroupOutcome.TRAINED
    state = EpisodeState.TRAINED if is_trained else EpisodeState.EXCLUDED
    for episode in named:
        settle(unit, episode, state, f"step {fact.step}" if is_trained else fact.reason)
    cancel(unit, run, [episode for episode in unsettled if episode not in named], "group_settled")
    outcome = fact.outcome if is_trained else f"{fact.outcome}({fact.reason})"
    # A settlement that is read late, after `step.completed`, belongs to its own step all the same.
    close_group(unit, run, group, outcome, at_step=fact.step - 1 if is_trained else None)
    if not group.num_graded:
        end_if_only_failures(unit, run.run_id)
    guide_after(unit, group, fact)
    new_tasks.order_after(unit, group, outcome)
    if is_trained:
        end_with_last_step(unit, unit.run(run.run_id) or run)


def _on_advanced(unit: PlanUnit, run: RunRecord, fact: Advanced) -> None:
    refuse_false_step(unit, run, fact)
    for settled in settled_by(unit, fact):  # before it in the stream, unless the stream lost them
        _apply(unit, run, settled)
    run = unit.run(run.run_id) or run
    version, spent_s = max(run.policy_version, fact.version), max(run.trainer_s, fact.trainer_s)
    advanced = replace(run, step=believed_step(unit, run, fact), policy_version=version, trainer_s=spent_s)
    if advanced != run:
        unit.update_run(advanced)
    note_tracked(unit, run, fact)
    if fact.step:
        end_with_last_step(unit, advanced, is_certain=fact.episode_ids is None)
