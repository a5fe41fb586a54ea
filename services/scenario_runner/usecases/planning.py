"""The planner: keeps runs supplied with episodes, follows what becomes of them, ends runs.

Every function runs in one transaction (a PlanUnit), so that requested = settled + in flight holds at each
instant that anyone can see.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from scenario_runner.domain import plan
from scenario_runner.domain.runs import (
    FINAL_RUN_STATES,
    LIVELY_RUN_STATES,
    Advanced,
    EpisodeRow,
    EpisodeState,
    Fact,
    Failed,
    Graded,
    GroupRow,
    GroupSettled,
    Purpose,
    RunRecord,
    RunState,
    Stopping,
)
from scenario_runner.ports import PlanUnit

log = logging.getLogger(__name__)

MAX_DETAIL_CHARS = 2000
OVERDUE = "timeout"
"""Failure kind of an episode that was not graded in time; the only one that this service reports itself."""


@dataclass(frozen=True, slots=True)
class PlanRules:
    """eval_episodes_in_flight: bound of one evaluation. groups_per_transaction: how long a transaction gets.
    ending_grace_s: how long graded episodes of a cancelled or failed run wait for the trainer's last word;
    stop_grace_s: the same for a run that ends early, whose trainer finishes a step and saves a checkpoint."""

    eval_episodes_in_flight: int = 256
    groups_per_transaction: int = 8
    ending_grace_s: float = 20.0
    stop_grace_s: float = 600.0


def plan_more(unit: PlanUnit, run_id: str, rules: PlanRules) -> int:
    """Plan the next groups of a run, a few at a time; returns how many, 0 when nothing may be planned now."""
    run = unit.run(run_id)
    if run is None:
        return 0
    slots = plan.group_slots(run, rules.eval_episodes_in_flight)
    wanted = plan.groups_wanted(run, unit.num_open_groups(run_id), slots)
    count = min(wanted, rules.groups_per_transaction)
    if count:
        _add_groups(unit, run, count)
    return count


def apply_facts(unit: PlanUnit, facts: Iterable[Fact]) -> set[str]:
    """Take in what happened, in order. A fact heard twice, or late, changes nothing. Returns the runs
    touched.
    """
    facts = list(facts)
    unit.prefetch({group for fact in facts if (group := _group_of(fact)) is not None})
    touched: set[str] = set()
    for fact in facts:
        run = unit.run(fact.run_id)
        if run is None:
            continue
        _apply(unit, run, fact)
        touched.add(run.run_id)
    for run_id in sorted(touched):
        conclude(unit, run_id)
    return touched


def _apply(unit: PlanUnit, run: RunRecord, fact: Fact) -> None:
    match fact:
        case Graded():
            _on_graded(unit, run, fact)
        case Failed():
            _on_failed(unit, run, fact)
        case GroupSettled():
            _on_group_settled(unit, run, fact)
        case Advanced():
            _on_advanced(unit, run, fact)
        case Stopping():
            _on_stopping(unit, run)


def end_run(unit: PlanUnit, run: RunRecord, ending: RunState, reason: str, *, failure: str = "") -> None:
    """Plan nothing more and cancel what is unsettled.

    A trainer that completed its last step has said everything before, so all of it is cancelled at once. A
    run that ends otherwise leaves graded episodes a grace period: the trainer may be in the middle of a step.
    """
    gives_up_waiting = run.ends_early and ending is not RunState.COMPLETED
    if run.state in FINAL_RUN_STATES or (run.ending is not None and not gives_up_waiting):
        return
    ended = replace(run, state=RunState.DRAINING, ending=ending, ending_since=unit.now, failure=failure)
    unit.update_run(ended)
    has_last_word = ending is RunState.COMPLETED
    unsettled = unit.unsettled(run.run_id)
    _cancel(
        unit,
        ended,
        [row for row in unsettled if has_last_word or row.state is EpisodeState.PLANNED],
        reason,
    )


def conclude(unit: PlanUnit, run_id: str) -> bool:
    """End the run if nothing is left to wait for; returns whether it is over."""
    run = unit.run(run_id)
    if run is None or run.state in FINAL_RUN_STATES:
        return True
    ending = run.ending
    if ending is None and run.spec.purpose is Purpose.EVAL and run.next_position >= run.num_tasks:
        ending = RunState.COMPLETED if run.num_graded else RunState.FAILED
    if ending is None:
        return False
    counts = unit.counts(run_id)
    if counts.in_flight:
        return False
    failure = run.failure or (_why_all_failed(unit, run) if ending is RunState.FAILED else "")
    over = replace(run, state=ending, ending=ending, finished_at=unit.now, failure=failure)
    unit.update_run(over)
    unit.announce_finished(over, counts)
    log.info("run_finished", extra={"run_id": run_id, "state": ending.value, "requested": counts.requested})
    return True


def pause(unit: PlanUnit, run: RunRecord) -> None:
    """Dispatch nothing new. Refills that become due meanwhile are planned, and held back."""
    if run.state is RunState.RUNNING:
        unit.update_run(replace(run, state=RunState.PAUSED))


def resume(unit: PlanUnit, run: RunRecord) -> None:
    """Go on where `pause` left off."""
    if run.state is not RunState.PAUSED:
        return
    running = replace(run, state=RunState.RUNNING)
    unit.update_run(running)
    for episode in unit.unsettled(run.run_id):
        if episode.num_dispatches == 0:
            unit.dispatch_again(running, episode)


def stop_early(unit: PlanUnit, run: RunRecord, reason: str) -> None:
    """End a training run as COMPLETED before its last step: plan nothing more, and say so.

    Nothing is cancelled here: a grade that this plan has not heard of may be in a batch already. The word
    goes through the stream, and comes back in it: what is graded before it is the trainer's to settle, what
    is not will never train (`_on_stopping`).
    """
    if run.ending is not None or run.state in FINAL_RUN_STATES:
        return
    stopping = replace(run, state=RunState.DRAINING, ending=RunState.COMPLETED, ending_since=unit.now)
    unit.update_run(stopping)
    unit.announce_stopping(stopping, reason)


def sweep(unit: PlanUnit, run_id: str, rules: PlanRules, *, queue_is_idle: bool) -> None:
    """Deal with what did not happen in time: fail by name, dispatch again, end the grace period."""
    run = unit.run(run_id)
    if run is None:
        return
    patience = timedelta(seconds=run.spec.episode_deadline_s)
    for episode in unit.overdue(run_id, unit.now - patience):
        detail = f"not graded within {run.spec.episode_deadline_s} s after its environment was opened"
        unit.announce_failed(run, episode, OVERDUE, detail)
        _fail(unit, run, episode, OVERDUE, detail)
        # One more failure may have ended the run, and an ended run is not refilled.
        run = unit.run(run_id) or run
    if queue_is_idle:
        for episode in unit.never_opened(run_id, unit.now - patience):
            if episode.num_dispatches == 0:
                continue  # held back: the run is paused
            log.warning("episode_dispatched_again", extra={"episode_id": episode.episode_id})
            unit.dispatch_again(run, episode)
    grace = timedelta(seconds=rules.stop_grace_s if run.ends_early else rules.ending_grace_s)
    if run.ending_since is not None and unit.now - run.ending_since > grace:
        _cancel(unit, run, unit.unsettled(run_id), "run_over")
    conclude(unit, run_id)


def _add_groups(unit: PlanUnit, run: RunRecord, count: int) -> None:
    seed = plan.run_seed(run)
    groups = [
        GroupRow(
            plan.group_id_of(run.run_id, position), run.run_id, position, task_position, run.spec.group_size
        )
        for position, task_position in plan.tasks_from(seed, run.num_tasks, run.next_position, count)
    ]
    unit.add_groups(groups)
    members = range(run.spec.group_size)
    unit.add_episodes(run, [_episode(group, member, 0) for group in groups for member in members])
    unit.update_run(replace(run, next_position=run.next_position + count))


def _episode(group: GroupRow, member: int, attempt: int) -> EpisodeRow:
    episode_id = plan.episode_id_of(group.group_id, member, attempt)
    return EpisodeRow(episode_id, group.run_id, group.group_id, member, attempt, group.task_position)


def _on_graded(unit: PlanUnit, run: RunRecord, fact: Graded) -> None:
    episode = unit.episode(fact.episode_id)
    if episode is None:
        return
    if episode.state is EpisodeState.FAILED and episode.reason == OVERDUE:
        _on_graded_too_late(unit, run, episode, fact)
    elif episode.state is EpisodeState.PLANNED:
        _grade(unit, run, episode, fact)


def _grade(unit: PlanUnit, run: RunRecord, episode: EpisodeRow, fact: Graded) -> None:
    is_final = run.spec.purpose is Purpose.EVAL
    graded = replace(
        episode,
        state=EpisodeState.EVALUATED if is_final else EpisodeState.GRADED,
        reason="",
        detail="",
        reward=fact.reward,
        success=fact.success,
        num_turns=fact.num_turns,
        oldest_version=fact.oldest_version,
        newest_version=fact.newest_version,
        graded_at=unit.now,
        settled_at=unit.now if is_final else None,
    )
    unit.update_episode(graded)
    unit.update_run(
        replace(
            run,
            num_graded=run.num_graded + 1,
            num_successes=run.num_successes + fact.success,
            reward_sum=run.reward_sum + fact.reward,
        )
    )
    group = unit.group(episode.group_id)
    if group is not None:
        unit.update_group(replace(group, num_graded=group.num_graded + 1))
        _close_if_empty(unit, run.run_id, group.group_id)


def _on_graded_too_late(unit: PlanUnit, run: RunRecord, episode: EpisodeRow, fact: Graded) -> None:
    """Graded before our own word that it is overdue reached the stream, which keeps the first of the two.

    So for everybody else it is graded. While its group is open it counts, and its replacement is called off.
    """
    group = unit.group(episode.group_id)
    if group is None or not group.is_open or run.state not in LIVELY_RUN_STATES:
        unit.announce_cancelled(run, episode, "group_settled")
        return
    newer = [row for row in unit.members(group.group_id) if row.member == episode.member and row.is_unsettled]
    _grade(unit, run, episode, fact)
    _cancel(unit, run, [row for row in newer if row.state is EpisodeState.PLANNED], "graded_after_all")


def _on_failed(unit: PlanUnit, run: RunRecord, fact: Failed) -> None:
    episode = unit.episode(fact.episode_id)
    if episode is not None and episode.state is EpisodeState.PLANNED:
        _fail(unit, run, episode, fact.failure, fact.detail)


def _fail(unit: PlanUnit, run: RunRecord, episode: EpisodeRow, failure: str, detail: str) -> None:
    _settle(unit, episode, EpisodeState.FAILED, failure, detail)
    group = unit.group(episode.group_id)
    if group is None:
        return
    match plan.after_failure(episode.attempt, run.state, group_is_open=group.is_open):
        case plan.Refill(attempt):
            unit.add_episodes(run, [_episode(group, episode.member, attempt)])
        case plan.Shorten():
            shortened = replace(group, expected_members=group.expected_members - 1)
            unit.update_group(shortened)
            unit.announce_shortened(run, shortened, failure)
            _close_if_empty(unit, run.run_id, group.group_id)
        case None:
            _close_if_empty(unit, run.run_id, group.group_id)


def _settle(unit: PlanUnit, episode: EpisodeRow, state: EpisodeState, reason: str, detail: str = "") -> None:
    unit.update_episode(
        replace(episode, state=state, reason=reason, detail=detail[:MAX_DETAIL_CHARS], settled_at=unit.now)
    )


def _close_if_empty(unit: PlanUnit, run_id: str, group_id: str) -> None:
    """A group without unsettled members is over: all of an evaluation's, and one of which every member
    failed.
    """
    group = unit.group(group_id)
    if group is None or not group.is_open or any(row.is_unsettled for row in unit.members(group_id)):
        return
    outcome = "evaluated" if group.num_graded else "failed"
    unit.update_group(replace(group, is_open=False, outcome=outcome, settled_at=unit.now))
    run = unit.run(run_id)
    if run is not None:
        _give_up_if_hopeless(unit, run)


def _give_up_if_hopeless(unit: PlanUnit, run: RunRecord) -> None:
    """A training run of which nothing can be graded would otherwise plan for ever."""
    training = run.spec.training
    if training is None:
        return
    enough = 2 * training.prompts_per_step
    if plan.is_hopeless(unit.recent_outcomes(run.run_id, enough), enough):
        failure = f"the last {enough} groups had no graded episode: {_why_all_failed(unit, run)}"
        end_run(unit, run, RunState.FAILED, "run_failed", failure=failure)


def _on_group_settled(unit: PlanUnit, run: RunRecord, fact: GroupSettled) -> None:
    group = unit.group(fact.group_id)
    if group is None or not group.is_open:
        return
    unsettled = [row for row in unit.members(fact.group_id) if row.is_unsettled]
    named = [episode for episode in unsettled if episode.episode_id in fact.episode_ids]
    is_trained = fact.outcome == "trained"
    state = EpisodeState.TRAINED if is_trained else EpisodeState.EXCLUDED
    for episode in named:
        _settle(unit, episode, state, f"step {fact.step}" if is_trained else fact.reason)
    _cancel(unit, run, [episode for episode in unsettled if episode not in named], "group_settled")
    outcome = fact.outcome if is_trained else f"{fact.outcome}({fact.reason})"
    unit.update_group(replace(group, is_open=False, outcome=outcome, settled_at=unit.now))


def _on_advanced(unit: PlanUnit, run: RunRecord, fact: Advanced) -> None:
    step, version = max(run.step, fact.step), max(run.policy_version, fact.version)
    advanced = replace(run, step=step, policy_version=version)
    if advanced != run:
        unit.update_run(advanced)
    if run.spec.training is None or step < run.spec.training.steps:
        return
    if run.ends_early:  # the step under way was the last one anyway: nothing more will be said of the rest
        _cancel(unit, advanced, unit.unsettled(run.run_id), "run_over")
    else:
        end_run(unit, advanced, RunState.COMPLETED, "run_over")


def _on_stopping(unit: PlanUnit, run: RunRecord) -> None:
    """Our own word to stop, at its place among the grades: the trainer ignores every later one."""
    if not run.ends_early:
        return
    pending = [row for row in unit.unsettled(run.run_id) if row.state is EpisodeState.PLANNED]
    _cancel(unit, run, pending, "run_stopped")


def _cancel(unit: PlanUnit, run: RunRecord, episodes: Sequence[EpisodeRow], reason: str) -> None:
    pending = [episode for episode in episodes if episode.is_unsettled]
    groups = {episode.group_id for episode in pending}
    unit.prefetch(groups)
    for episode in pending:
        _settle(unit, episode, EpisodeState.CANCELLED, reason)
        unit.announce_cancelled(run, episode, reason)
    for group_id in groups:
        group = unit.group(group_id)
        if group is None or not group.is_open or any(row.is_unsettled for row in unit.members(group_id)):
            continue
        outcome = f"cancelled({reason})"
        unit.update_group(replace(group, is_open=False, outcome=outcome, settled_at=unit.now))


def _group_of(fact: Fact) -> str | None:
    match fact:
        case Graded() | Failed():
            return plan.group_of(fact.episode_id)
        case GroupSettled():
            return fact.group_id
        case Advanced() | Stopping():
            return None


def _why_all_failed(unit: PlanUnit, run: RunRecord) -> str:
    failed = [row for row in unit.results(run.run_id) if row.state is EpisodeState.FAILED]
    if not failed:
        return "no episode was graded"
    kinds = [row.reason for row in failed]
    commonest = max(set(kinds), key=kinds.count)
    detail = next(row.detail for row in reversed(failed) if row.reason == commonest)
    return f"{kinds.count(commonest)} of {len(failed)} failed with {commonest}: {detail[:300]}"
