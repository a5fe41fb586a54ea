"""Groups of evaluations for training runs: offered while the run may open more groups. A run that trains on
evaluations only ends when they are used up.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from episodes import Purpose
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.learning import remedy_of_left_out
from scenario_runner.domain.run_facts import Supply
from scenario_runner.domain.runs import FINAL_RUN_STATES, Counts, RunRecord, RunState
from scenario_runner.domain.source_groups import SourceGroupState, SourceLoad, SourceReport, SourceTally
from scenario_runner.domain.sources import in_words, may_train_on, outcomes, reports
from scenario_runner.usecases.arriving_sessions import sessions_end_at
from scenario_runner.usecases.ending import conclude, end_run, stop_early
from scenario_runner.usecases.new_groups import open_limit
from scenario_runner.usecases.offering import offer
from scenario_runner.usecases.planning import PlanRules

STOPPED_BECAUSE = "its evaluations are used up"


def offer_more(unit: PlanUnit, run_id: str, rules: PlanRules) -> int:
    """Offer the next groups of evaluations to a run, a few at a time; returns how many were offered or left
    out, 0 when nothing can be offered now."""
    run = unit.run(run_id)
    if run is None or run.spec.training is None or run.state is not RunState.RUNNING:
        return 0
    load = unit.source_groups.load(run_id)
    if not load.is_waiting:
        _end_if_used_up(unit, run, load)
        return 0
    num_open = unit.num_open_groups(run_id)
    free = open_limit(unit, run, num_open, rules.eval_episodes_in_flight) - num_open - load.offered
    return offer(unit, run, free, rules.groups_per_transaction) if free > 0 else 0


def _end_if_used_up(unit: PlanUnit, run: RunRecord, load: SourceLoad) -> None:
    """End a run that cannot fill another batch: it plans no groups, and no evaluation brings it more."""
    training = run.spec.training
    if training is None or not run.spec.no_sampling or not (run.spec.source_runs or run.spec.sessions):
        return
    ends_at = sessions_end_at(unit, run)
    goes_on = ends_at is None and not training.steps and bool(run.spec.taskset)
    if goes_on or (ends_at is not None and unit.now < ends_at):
        return
    if load.offered >= training.prompts_per_step or evaluations_under_way(unit, run):
        return
    if unit.num_in_step(run.run_id, run.step):  # it may be the last one
        return
    tallies = unit.source_groups.tallies(run.run_id)
    if run.step or any(tally.state is SourceGroupState.TRAINED for tally in tallies):
        stop_early(unit, run, _why_used_up(run), kept=True)
    else:
        failure = _why_no_step(run, source_reports(run, tallies))
        end_run(unit, run, RunState.FAILED, "run_failed", failure=failure)
    conclude(unit, run.run_id)


def _why_used_up(run: RunRecord) -> str:
    if not run.spec.sessions_idle_s:
        return STOPPED_BECAUSE
    return f"no graded session that can train came for {run.spec.sessions_idle_s} s (sessions_idle_s)"


def _why_no_step(run: RunRecord, sources: Sequence[SourceReport]) -> str:
    left_out: Counter[str] = Counter()
    for report in sources:
        left_out.update(report.left_out)
    num_groups, num_offered = sum(one.groups for one in sources), sum(one.offered for one in sources)
    prompts = run.spec.training.prompts_per_step if run.spec.training is not None else 0
    remedy = remedy_of_left_out(left_out)
    return (
        f"no step was made{f': {_why_used_up(run)}' if run.spec.sessions_idle_s else ''}: a step takes "
        f"{prompts} groups, and of the {num_groups} groups of its evaluations "
        f"{num_offered} are with the trainer; left out: {in_words(left_out)}; what may help: "
        f"{f'{remedy}; ' if remedy else ''}name more evaluations, or lower spec.training.prompts_per_step"
    )


def evaluations_under_way(unit: PlanUnit, run: RunRecord) -> list[str]:
    """Evaluations that are not over and whose groups the run may train on."""
    evaluations = unit.source_groups.open_runs(run.spec.policy.model, Purpose.EVAL)
    return [one.run_id for one in evaluations if may_train_on(run, one)]


def source_reports(run: RunRecord, tallies: Sequence[SourceTally]) -> tuple[SourceReport, ...]:
    """What a training run took from each evaluation."""
    is_over = run.ending is not None or run.state in FINAL_RUN_STATES
    return reports(tallies, run.spec.source_runs, is_over=is_over)


def with_offers(counts: Counts, tallies: Sequence[SourceTally]) -> Counts:
    """The counts of a training run, with the offered groups that its trainer settled among the outcomes."""
    offered_groups = Counter(outcomes(tallies))
    return replace(counts, groups_by_outcome=dict(offered_groups + Counter(counts.groups_by_outcome)))


def supply_of(unit: PlanUnit, run: RunRecord) -> Supply:
    """What `why` needs to know of a training run's evaluations."""
    if run.spec.purpose is Purpose.EVAL:
        return Supply()
    oldest = unit.source_groups.load(run.run_id).oldest_offer
    ends_at = sessions_end_at(unit, run)
    return Supply(
        sessions_end_in_s=None if ends_at is None else (ends_at - unit.now).total_seconds(),
        evaluations=tuple(evaluations_under_way(unit, run)),
        open_group_limit=open_limit(unit, run, unit.num_open_groups(run.run_id), 1),
        offered_s=(unit.now - oldest).total_seconds() if oldest is not None else 0.0,
    )
