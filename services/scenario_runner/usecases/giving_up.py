"""Which training runs end by themselves because they can only go on in vain, and with what reason."""

from collections.abc import Iterable

from scenario_runner.domain import plan
from scenario_runner.domain.facts import Fact, GroupSettled
from scenario_runner.domain.learning import nothing_to_learn
from scenario_runner.domain.runs import (
    LIVELY_RUN_STATES,
    EpisodeRow,
    EpisodeState,
    RunState,
)
from scenario_runner.ports import PlanUnit
from scenario_runner.usecases.ending import end_run, stop_early, why_all_failed


def give_up_if_hopeless(unit: PlanUnit, run_id: str) -> None:
    """A training run of which nothing can be graded would otherwise plan for ever."""
    run = unit.run(run_id)
    if run is None or run.spec.training is None or run.state not in LIVELY_RUN_STATES:
        return
    enough = 2 * run.spec.training.prompts_per_step
    if plan.is_hopeless(unit.recent_outcomes(run_id, enough), enough):
        failure = f"the last {enough} groups had no graded episode: {why_all_failed(unit, run)}"
        end_run(unit, run, RunState.FAILED, "run_failed", failure=failure)


def settled_without_step(facts: Iterable[Fact]) -> set[str]:
    """Runs of which these facts settle a group that was not trained on."""
    return {fact.run_id for fact in facts if isinstance(fact, GroupSettled) and fact.outcome != "trained"}


def give_up_if_nothing_to_learn(unit: PlanUnit, run_id: str) -> None:
    """A training run with a step limit that it never comes nearer to would sample for ever.

    Before its first step it fails. After one it ends early, with what it has learnt as its final checkpoint:
    it may have solved its tasks. Looked at after a whole batch of facts: a step that the batch completes
    counts.
    """
    run = unit.run(run_id)
    if run is None or run.state not in LIVELY_RUN_STATES:
        return
    training = run.spec.training
    if training is None or not training.steps:
        return
    if unit.num_without_step(run_id, run.step) < training.max_no_step_groups:
        return
    if unit.has_step_under_way(run_id, run.step):
        return
    num_waiting = _num_waiting(unit.unsettled(run_id))
    reason = nothing_to_learn(unit.without_step(run_id, run.step), run.step, num_waiting)
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
