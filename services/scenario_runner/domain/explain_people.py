"""What people should look at in a run: alarms, and trajectories that a promotion waits for. Pure."""

from collections.abc import Iterator

from scenario_runner.domain.run_facts import RunFacts, WaitReason
from scenario_runner.domain.runs import RunState
from scenario_runner.domain.taskset_checks import CheckKind, TasksetCheck
from scenario_runner.domain.tracked import alarms
from upcycle.wording import amount


def warnings(facts: RunFacts) -> Iterator[WaitReason]:
    """Alarms of the trainer and of the monitors of reward hacks."""
    for one in facts.session.alarms if facts.session is not None else ():
        yield WaitReason("grpo_trainer", f"alarm: {one}", 0, 0.0, "look at the run's curves, or stop it")
    if facts.session is not None and facts.session.process_weight < 1:
        what = f"rewards of the process count {facts.session.process_weight:.0%} by now"
        yield WaitReason("grpo_trainer", what, 0, 0.0, "nothing: the run's reward_schedule is fade")
    for one in alarms(facts.view.tracked):
        yield WaitReason("you", f"alarm: {one}", 0, 0.0, "look at what is paid, or stop the run")
    for one in facts.reward_alarms:
        look = f"upcycle trajectories review {facts.view.run.run_id}"
        yield WaitReason("trajectory_store", f"alarm: {one}", 0, 0.0, f"look at them: {look}")
    for check in facts.checks:
        if check.num_findings:
            remedy = f"upcycle tasksets show {check.taskset} names them; mend the environment, or the tasks"
            yield WaitReason("you", _found(check, facts.view.run.source_digest), 0, 0.0, remedy)


def _found(check: TasksetCheck, source_digest: str) -> str:
    """source_digest: of the code that judges the run."""
    places = amount(check.num_findings, "place")
    what = f"gives away in {places} what the agent has to find"
    if check.kind is CheckKind.ATTACK:
        against = f" against {check.model}" if check.model else ""
        what = f"was attacked{against}, with {amount(check.num_findings, 'finding')}"
    is_older = source_digest and check.source_digest and check.source_digest != source_digest
    older = " (another source of its environment than judges this run)" if is_older else ""
    first = f": {check.findings[0]}" if check.findings else ""
    return f"warning: taskset {check.taskset} {what}{older}{first}"


def promotions(facts: RunFacts) -> Iterator[WaitReason]:
    """What its checkpoints wait for that passed their gate, also after the run."""
    for said in facts.waiting_candidates:
        yield WaitReason("trajectory_store", said, 0, 0.0, "start trajectory_store, or see its log")
    yield from _reviews(facts)


def _reviews(facts: RunFacts) -> Iterator[WaitReason]:
    """People have to look. Nothing where the store did not answer."""
    run, confirmed = facts.view.run, facts.num_confirmed
    needed = run.spec.gate.require_review if run.spec.gate is not None else 0
    if confirmed is None or confirmed >= needed or run.state in (RunState.FAILED, RunState.CANCELLED):
        return
    what = (
        f"its checkpoints become head once {needed} of its best trajectories are confirmed, {confirmed} are"
    )
    yield WaitReason("you", what, 0, 0.0, f"look at them: upcycle trajectories review {run.run_id}")
