"""How runs end: with their last step, early, cancelled, or failed.

A trainer may be in the middle of a step when its run is to end. So the end is a word in the stream
(`run.stopping`): what is graded before it is the trainer's to settle, what is not never trains. To a trainer
that does not answer in time `run.stopping` is sent again, with `last_word`; what the trainer has not settled
before that, the planner settles, under the ids that the trainer would use. The stream keeps the first of two
messages with one id, so the planner and the trainer hear the same of each group.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from scenario_runner.domain.facts import Stopping
from scenario_runner.domain.runs import (
    FINAL_RUN_STATES,
    EpisodeRow,
    EpisodeState,
    GroupRow,
    RunRecord,
    RunState,
)
from scenario_runner.ports import PlanUnit
from scenario_runner.usecases.drawing import announce_released
from upcycle.run_config import Purpose

log = logging.getLogger(__name__)

MAX_DETAIL_CHARS = 2000
_CANCELLED_BY = {
    RunState.COMPLETED: "run_stopped",
    RunState.CANCELLED: "run_cancelled",
    RunState.FAILED: "run_failed",
}
_NO_ANSWER = "the trainer did not answer in time"


def end_run(unit: PlanUnit, run: RunRecord, ending: RunState, reason: str, *, failure: str = "") -> None:
    """Plan nothing more, and see to what is unsettled.

    Where a trainer may still have a word to say, it is waited for; else all is cancelled at once: of an
    evaluation, and of a run whose trainer completed its last step, which says everything before that. A run
    that was stopped may be cancelled on top, which shortens the wait. reason: why episodes are cancelled.
    """
    gives_up_waiting = run.ends_early and ending is not RunState.COMPLETED
    if run.state in FINAL_RUN_STATES or (run.ending is not None and not gives_up_waiting):
        return
    ended = replace(run, state=RunState.DRAINING, ending=ending, ending_since=unit.now, failure=failure)
    unit.update_run(ended)
    if ended.awaits_trainer:
        unit.announce_stopping(ended, failure or reason)
    else:
        cancel(unit, ended, unit.unsettled(run.run_id), reason)
        announce_released(unit, ended)


def stop_early(unit: PlanUnit, run: RunRecord, reason: str, *, kept: bool = False) -> None:
    """End a training run as COMPLETED before its last step: plan nothing more, and say so.

    kept: the run keeps the reason, as it ends by itself.
    """
    if run.ending is not None or run.state in FINAL_RUN_STATES:
        return
    stopping = replace(
        run,
        state=RunState.DRAINING,
        ending=RunState.COMPLETED,
        ending_since=unit.now,
        failure=reason if kept else run.failure,
    )
    unit.update_run(stopping)
    unit.announce_stopping(stopping, reason)


def on_stopping(unit: PlanUnit, run: RunRecord, fact: Stopping) -> None:
    """The planner's own `run.stopping` came back: the trainer ignores every grade behind it in the stream.

    The one with `last_word` settles what is graded: in the stream first, and here when it comes back from
    there, because an answer of the trainer may be on its way between the two.
    """
    if run.ending is None or not run.awaits_trainer or run.state in FINAL_RUN_STATES:
        return
    unsettled = unit.unsettled(run.run_id)
    pending = [row for row in unsettled if row.state is EpisodeState.PLANNED]
    cancel(unit, run, pending, _CANCELLED_BY[run.ending])
    if not fact.is_last:
        return
    graded: dict[str, list[str]] = {}
    for row in unsettled:
        if row.state is EpisodeState.GRADED:
            graded.setdefault(row.group_id, []).append(row.episode_id)
    num_offers = announce_released(unit, run)
    log.warning(
        "trainer_overruled", extra={"run_id": run.run_id, "groups": len(graded), "offers": num_offers}
    )
    for group_id, episode_ids in sorted(graded.items()):
        unit.announce_settled_instead(run, group_id, sorted(episode_ids))


def end_without_trainer(unit: PlanUnit, run: RunRecord, failure: str) -> None:
    """The trainer says that it will not go on with the run: end it now, as FAILED unless it ends already.

    It ends as after a grace period, without the period: by `run.stopping` with `last_word`. So a second
    trainer of the run, if there is one, hears it too, and what it said before stands. A run that is over, or
    that has no trainer, stays as it is.
    """
    if run.state in FINAL_RUN_STATES or run.spec.training is None:
        return
    known = run.failure or failure
    if run.ends_early and failure not in known:
        known = f"{known}; {failure}"  # why it ended early, and why it may lack its final checkpoint
    ended = replace(run, failure=known)
    if run.ending is None:
        ended = replace(ended, state=RunState.DRAINING, ending=RunState.FAILED, ending_since=unit.now)
    log.warning("trainer_gave_up", extra={"run_id": run.run_id, "failure": failure})
    unit.update_run(ended)
    unit.announce_stopping(ended, failure, is_last=True)


def end_wait(unit: PlanUnit, run: RunRecord) -> None:
    """What ends has ended long enough; repeated until it is over, it changes nothing."""
    if run.state in FINAL_RUN_STATES:
        return
    if run.awaits_trainer:
        unit.announce_stopping(run, _NO_ANSWER, is_last=True)
    else:
        cancel(unit, run, unit.unsettled(run.run_id), "run_over")
        announce_released(unit, run)


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
    if counts.in_flight or unit.draws.load(run_id).offered:
        return False
    failure = run.failure or (why_all_failed(unit, run) if ending is RunState.FAILED else "")
    over = replace(run, state=ending, ending=ending, finished_at=unit.now, failure=failure)
    unit.update_run(over)
    unit.announce_finished(over, counts)
    log.info("run_finished", extra={"run_id": run_id, "state": ending.value, "requested": counts.requested})
    return True


def cancel(unit: PlanUnit, run: RunRecord, episodes: Sequence[EpisodeRow], reason: str) -> None:
    """Cancel those of the episodes that are unsettled; groups without any other are over."""
    pending = [episode for episode in episodes if episode.is_unsettled]
    groups = {episode.group_id for episode in pending}
    unit.prefetch(groups)
    for episode in pending:
        call_off(unit, run, episode, reason)
    for group_id in sorted(groups):
        group = unit.group(group_id)
        if group is None or not group.is_open or any(row.is_unsettled for row in unit.members(group_id)):
            continue
        close_group(unit, run, group, f"cancelled({reason})")


def call_off(unit: PlanUnit, run: RunRecord, episode: EpisodeRow, reason: str) -> None:
    """Cancel one episode, whatever becomes of its group."""
    settle(unit, episode, EpisodeState.CANCELLED, reason)
    unit.announce_cancelled(run, episode, reason)


def close_group(unit: PlanUnit, run: RunRecord, group: GroupRow, outcome: str) -> None:
    """End a group: its slot is free."""
    unit.update_group(replace(group, is_open=False, outcome=outcome, settled_at=unit.now, at_step=run.step))


def settle(unit: PlanUnit, episode: EpisodeRow, state: EpisodeState, reason: str, detail: str = "") -> None:
    """Bring an episode to a final state."""
    unit.update_episode(
        replace(episode, state=state, reason=reason, detail=detail[:MAX_DETAIL_CHARS], settled_at=unit.now)
    )


def why_all_failed(unit: PlanUnit, run: RunRecord) -> str:
    """The commonest failure of a run's episodes, with an example."""
    failed = [row for row in unit.results(run.run_id) if row.state is EpisodeState.FAILED]
    if not failed:
        return "no episode was graded"
    kinds = [row.reason for row in failed]
    commonest = max(set(kinds), key=kinds.count)
    detail = next(row.detail for row in reversed(failed) if row.reason == commonest)
    return f"{kinds.count(commonest)} of {len(failed)} failed with {commonest}: {detail[:300]}"
