"""Training runs that end or pause by themselves: every episode fails, no group has a gradient, or all are too
old to train."""

import logging
from collections.abc import Iterable
from dataclasses import replace

from episodes import GroupOutcome
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain import plan
from scenario_runner.domain.facts import Fact, GroupSettled
from scenario_runner.domain.learning import NoSteps, all_too_old, nothing_to_learn, why_no_steps
from scenario_runner.domain.runs import (
    FAILED,
    LOST,
    NUM_RECENT,
    OPEN_RUN_STATES,
    EpisodeRow,
    EpisodeState,
    RunRecord,
    RunState,
)
from scenario_runner.usecases.ending import end_run, stop_early, why_all_failed

log = logging.getLogger(__name__)


def end_if_only_failures(unit: PlanUnit, run_id: str) -> None:
    """End a training run whose last groups all failed: it would plan for ever."""
    run = unit.run(run_id)
    if run is None or run.spec.training is None or run.state not in OPEN_RUN_STATES:
        return
    enough = 2 * run.spec.training.prompts_per_step
    if plan.has_only_failures(unit.recent_outcomes(run_id, enough), enough):
        failure = f"the last {enough} groups had no graded episode: {why_all_failed(unit, run, enough)}"
        end_run(unit, run, RunState.FAILED, "run_failed", failure=failure)


def pause_if_failing(unit: PlanUnit, run_id: str) -> None:
    """Pause a training run of which too many recent episodes failed, and say of what."""
    run = unit.run(run_id)
    if run is None or run.spec.training is None or run.state is not RunState.RUNNING:
        return
    limit = run.spec.training.max_infra_failures * NUM_RECENT
    num_lost = run.recent_ends.count(LOST)
    num_failed = run.recent_ends.count(FAILED) + num_lost
    if num_failed > limit and num_lost:
        num_failed -= plan.lost_at_once(unit.losses(run_id), num_lost, unit.now)
    if num_failed <= limit:
        return
    waits = unit.waits(run_id)
    causes = sorted(waits.failures.items(), key=lambda item: (-item[1], item[0]))
    text = (
        f"paused itself: {num_failed} of the last {len(run.recent_ends)} episodes failed without the "
        f"policy's doing; failures until now: {', '.join(f'{count} {kind}' for kind, count in causes)}; "
        f"the newest: {waits.last_failure[:300]}"
    )
    _pause_itself(unit, run, text)


def _pause_itself(unit: PlanUnit, run: RunRecord, text: str) -> None:
    log.warning("run_paused_itself", extra={"run_id": run.run_id, "reason": text})
    unit.update_run(replace(run, state=RunState.PAUSED, failure=text))


def settled_without_step(facts: Iterable[Fact]) -> set[str]:
    """Runs of which these facts settle groups that were not trained on."""
    settled = (fact for fact in facts if isinstance(fact, GroupSettled))
    return {fact.run_id for fact in settled if fact.outcome != GroupOutcome.TRAINED}


def end_if_nothing_to_learn(unit: PlanUnit, run_id: str) -> None:
    """End a training run with a step limit after too many groups in a row without a step.

    Before its first step it fails. After one it ends early, with a final checkpoint: it may have solved its
    tasks. A run whose groups are too old to train pauses instead: nothing is known about what there is to
    learn; once a person resumed it, only groups of after that count. Called after a whole batch of facts, so
    that a step which the batch completes counts.
    """
    run = unit.run(run_id)
    if run is None or run.state not in OPEN_RUN_STATES:
        return
    training = run.spec.training
    if training is None or not training.steps:
        return
    outcomes = unit.outcomes_without_step(run)
    why = why_no_steps(outcomes, training)
    if why is None or unit.num_in_step(run_id, run.step):
        return
    if why is NoSteps.TOO_OLD:
        if run.state is RunState.RUNNING:
            _pause_itself(unit, run, all_too_old(outcomes, run.step, run.run_id))
        return
    num_waiting = _num_waiting(unit.unsettled(run_id))
    reason = nothing_to_learn(unit.without_step(run), run.step, num_waiting)
    if run.step:
        stop_early(unit, run, reason, kept=True)
    else:
        end_run(unit, run, RunState.FAILED, "run_failed", failure=reason)


def _num_waiting(unsettled: Iterable[EpisodeRow]) -> int:
    """Groups of which every unsettled member is graded."""
    states: dict[str, set[EpisodeState]] = {}
    for row in unsettled:
        states.setdefault(row.group_id, set()).add(row.state)
    return sum(found == {EpisodeState.GRADED} for found in states.values())
