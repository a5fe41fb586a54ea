"""How runs end: with their last step, early, cancelled, or failed.

A trainer may be in the middle of a step when its run is to end. So the planner publishes `run.stopping`, and
its position in the stream is the cutoff: episodes graded before it are settled by the trainer, episodes
graded after it never train. If the trainer misses the planner's deadline, the planner publishes the final
`run.stopping` (`is_final`), and then `group.settled` itself for every group that the trainer has not settled
before it. These are decisions: of the two the first wins, for all groups of a step together, and both read
it. So planner and trainer follow the same outcome of each group.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from episodes import EpisodeFailure, GroupReason
from identities import events as event_ids
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.facts import Stopping
from scenario_runner.domain.recounts import Recount
from scenario_runner.domain.runs import (
    FINAL_RUN_STATES,
    EpisodeRow,
    EpisodeState,
    GroupRow,
    RunRecord,
    RunState,
)
from scenario_runner.usecases import new_tasks, self_play
from scenario_runner.usecases.mixing import note_closed
from scenario_runner.usecases.offering import announce_released
from scenario_runner.usecases.recounting import is_settled, recounted

log = logging.getLogger(__name__)

MAX_DETAIL_CHARS = 2000
MAX_LOOKED_AT = 1000
"""Episodes among which the reason of a failed run is looked for: it may have millions."""
_CANCELLED_BY = {
    RunState.COMPLETED: "run_stopped",
    RunState.CANCELLED: "run_cancelled",
    RunState.FAILED: "run_failed",
}
PROPOSED = "evaluated"
"""How a group of a training run ends that proposes: whether it taught anything is known when its offer is."""
_NO_ANSWER = "the trainer did not answer in time"


def end_run(unit: PlanUnit, run: RunRecord, ending: RunState, reason: str, *, failure: str = "") -> None:
    """Plan nothing more, and settle what is unsettled.

    A training run before its last step waits for its trainer, up to a deadline. Anything else is cancelled at
    once: an evaluation has no trainer, and a trainer publishes all its settlements before its last step. A
    run that was stopped may be cancelled as well, which shortens the wait. reason: why episodes are
    cancelled.
    """
    shortens_wait = run.ends_early and ending is not RunState.COMPLETED
    if run.state in FINAL_RUN_STATES or (run.ending is not None and not shortens_wait):
        return
    ended = _drained(unit, run, ending, failure)
    if ended.awaits_trainer:
        unit.announce_stopping(ended, failure or reason)
    else:
        cancel(unit, ended, unit.unsettled(run.run_id), reason)
        announce_released(unit, ended)


def _drained(unit: PlanUnit, run: RunRecord, ending: RunState, failure: str) -> RunRecord:
    """The one place where a run becomes DRAINING: nothing more is planned, and once all is settled it ends as
    `ending`."""
    ended = replace(run, state=RunState.DRAINING, ending=ending, ending_since=unit.now, failure=failure)
    unit.update_run(ended)
    return ended


def stop_early(unit: PlanUnit, run: RunRecord, reason: str, *, kept: bool = False) -> None:
    """End a training run as COMPLETED before its last step, and publish `run.stopping`.

    kept: the run ends by itself, so the reason becomes its `failure`.
    """
    if run.ending is not None or run.state in FINAL_RUN_STATES:
        return
    stopping = _drained(unit, run, RunState.COMPLETED, reason if kept else "")
    unit.announce_stopping(stopping, reason)


def on_stopping(unit: PlanUnit, run: RunRecord, fact: Stopping) -> None:
    """The planner's own `run.stopping` is delivered: its position is the cutoff, later grades never train.

    What is not graded by then is cancelled. After the final one the planner publishes `group.settled` for all
    graded groups. Its tables change only when these events are delivered back: a `group.settled` of the
    trainer may stand before them in the stream.
    """
    if run.ending is None or not run.awaits_trainer or run.state in FINAL_RUN_STATES:
        return
    unsettled = unit.unsettled(run.run_id)
    pending = [row for row in unsettled if row.state is EpisodeState.PLANNED]
    cancel(unit, run, pending, _CANCELLED_BY[run.ending])
    if fact.is_final:
        _settle_graded(unit, run, unsettled)


def _settle_graded(unit: PlanUnit, run: RunRecord, unsettled: Sequence[EpisodeRow]) -> None:
    """Publish `group.settled` for the graded groups. The trainer may have decided about one before: its
    decision stands then, and is the one that comes back."""
    graded: dict[str, list[str]] = {}
    for row in unsettled:
        if row.state is EpisodeState.GRADED:
            graded.setdefault(row.group_id, []).append(row.episode_id)
    num_offers = announce_released(unit, run)
    extra = {"run_id": run.run_id, "groups": len(graded), "offers": num_offers}
    log.warning("settled_without_trainer", extra=extra)
    for group_id, episode_ids in sorted(graded.items()):
        unit.announce_settled(run, group_id, sorted(episode_ids))


def end_with_last_step(unit: PlanUnit, run: RunRecord, *, is_certain: bool = False) -> None:
    """End a training run whose last step is known: the trainer has no more to say.

    Nothing before all groups of all steps are read: of two planners one may read the last step while the
    other one is at a step before it, whose groups would be cancelled. is_certain: the trainer was asked. Then
    the stream may have lost groups that it trained: what is graded is decided about, and not cancelled.
    """
    training = run.spec.training
    if training is None or not training.reached(run.step) or run.state in FINAL_RUN_STATES:
        return
    has_read_all = unit.num_in_step(run.run_id, 0) >= run.step * training.prompts_per_step
    if not has_read_all and not is_certain:
        log.info("step_not_read_yet", extra={"run_id": run.run_id, "step": run.step})
        return
    unsettled = unit.unsettled(run.run_id)
    if not has_read_all and any(row.state is EpisodeState.GRADED for row in unsettled):
        if run.ending is None:
            run = _drained(unit, run, RunState.COMPLETED, run.failure)
        pending = [row for row in unsettled if row.state is EpisodeState.PLANNED]
        cancel(unit, run, pending, GroupReason.RUN_OVER)
        _settle_graded(unit, run, unsettled)
    elif run.ending is not None:
        cancel(unit, run, unit.unsettled(run.run_id), GroupReason.RUN_OVER)
        announce_released(unit, run)
    else:
        end_run(unit, run, RunState.COMPLETED, GroupReason.RUN_OVER)


def end_without_trainer(unit: PlanUnit, run: RunRecord, failure: str) -> None:
    """The trainer published `session.failed`: end the run now, as FAILED unless it was ending already.

    The planner publishes the final `run.stopping` at once, without a grace period. A second trainer of the
    run, if there is one, reads it too, and its earlier settlements count. A run that is over, or that has no
    trainer, does not change.
    """
    if run.state in FINAL_RUN_STATES or run.spec.training is None:
        return
    known = run.failure or failure
    if run.ends_early and failure not in known:
        known = f"{known}; {failure}"  # why it ended early, and why it may lack its final checkpoint
    log.warning("session_failed", extra={"run_id": run.run_id, "failure": failure})
    if run.ending is None:
        ended = _drained(unit, run, RunState.FAILED, known)
    else:
        ended = replace(run, failure=known)
        unit.update_run(ended)
    unit.announce_stopping(ended, failure, is_final=True)


def announce_ending_again(unit: PlanUnit, run: RunRecord) -> None:
    """Publish once more that a run ends. The final `run.stopping` only where the outbox has it: the sweep
    announces one that it has not, and on it follow the `group.settled` of the planner."""
    if run.ending is None or run.state in FINAL_RUN_STATES:
        return
    if run.awaits_trainer:
        unit.announce_stopping_again(run, run.failure or _CANCELLED_BY[run.ending])
    unit.announce_again([event_ids.run_stopping(run.run_id, is_final=final) for final in (False, True)])


def end_grace_period(unit: PlanUnit, run: RunRecord) -> None:
    """The grace period is over: stop waiting for the trainer. Called again, this changes nothing."""
    if run.state in FINAL_RUN_STATES:
        return
    if run.awaits_trainer:
        unit.announce_stopping(run, _NO_ANSWER, is_final=True)
    else:
        cancel(unit, run, unit.unsettled(run.run_id), GroupReason.RUN_OVER)
        announce_released(unit, run)


def conclude(unit: PlanUnit, run_id: str, counted: Recount | None = None) -> bool:
    """End the run if every episode and every offer is settled; returns whether it is over.

    counted: the whole run, which a large one needs in order to end; the sweep counts it.
    """
    before = unit.run(run_id)
    if before is None or before.state in FINAL_RUN_STATES:
        return True
    run = recounted(unit, before, counted) if is_settled(unit, before) else None
    if run is None:
        return False
    counts = unit.counts(run_id)
    has_results = run.num_graded or counts.by_state.get(EpisodeState.EVALUATED, 0)
    ending = run.ending or (RunState.COMPLETED if has_results else RunState.FAILED)
    failure = run.failure or (why_all_failed(unit, run) if ending is RunState.FAILED else "")
    over = replace(run, state=ending, ending=ending, finished_at=unit.now, failure=failure)
    unit.update_run(over)
    unit.keep_counts(run_id, counts)
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
    """Cancel one episode; its group stays open."""
    settle(unit, episode, EpisodeState.CANCELLED, reason)
    unit.announce_cancelled(run, episode, reason)


def close_group(
    unit: PlanUnit, run: RunRecord, group: GroupRow, outcome: str, *, at_step: int | None = None
) -> None:
    """End a group: another may open. at_step: the run's newest step before it ended, where that is not the
    newest one that the planner knows."""
    step = run.step if at_step is None else at_step
    unit.update_group(replace(group, is_open=False, outcome=outcome, settled_at=unit.now, at_step=step))
    if outcome != PROPOSED:
        note_closed(unit, run, group.taskset, outcome)
    new_tasks.note_closed(unit, run, group, outcome)
    self_play.note_closed(unit, run, group)


def settle(unit: PlanUnit, episode: EpisodeRow, state: EpisodeState, reason: str, detail: str = "") -> None:
    """Bring an episode to a final state."""
    unit.update_episode(
        replace(episode, state=state, reason=reason, detail=detail[:MAX_DETAIL_CHARS], settled_at=unit.now)
    )


def why_all_failed(unit: PlanUnit, run: RunRecord, num_groups: int | None = None) -> str:
    """The commonest failure of a run's episodes, with an example. num_groups: those of so many groups, that
    ended last, instead of all. Of many, the newest MAX_LOOKED_AT are read."""
    limit = max(1, MAX_LOOKED_AT // run.spec.group_size)
    results = unit.newest_results(run.run_id, min(limit, num_groups or limit))
    failed = [row for row in results if row.state is EpisodeState.FAILED]
    if not failed:
        return "no episode was graded"
    kinds = [row.reason for row in failed]
    commonest = max(set(kinds), key=kinds.count)
    detail = next(row.detail for row in reversed(failed) if row.reason == commonest)
    said = next(iter(detail.strip().splitlines()), "")  # the traceback stands with the episode
    is_part = num_groups is None and len({row.group_id for row in results}) == limit
    which = f"the newest {len(failed)}" if is_part else f"{len(failed)}"
    if set(kinds) == {EpisodeFailure.ENVIRONMENT_BROKEN}:
        return f"{commonest}: every episode fails, whatever is answered: {said[:300]}"
    return f"{kinds.count(commonest)} of {which} failed with {commonest}: {said[:300]}"
