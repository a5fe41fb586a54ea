"""What a training run waits for that trains on groups of evaluations and on recorded sessions. Pure."""

from collections import Counter
from collections.abc import Iterator

from scenario_runner.domain.learning import remedy_of_left_out
from scenario_runner.domain.run_facts import RunFacts, WaitReason
from scenario_runner.domain.runs import OPEN_RUN_STATES, RunState
from scenario_runner.domain.sources import in_words
from upcycle.wording import amount


def supply(facts: RunFacts) -> Iterator[WaitReason]:
    """Of a training run that trains on groups of evaluations."""
    run, fed, training = facts.view.run, facts.supply, facts.view.run.spec.training
    if training is None:
        return
    offered = facts.num_offered
    waiting = sum(report.waiting for report in facts.view.sources)
    if offered and (facts.session is None or facts.session.failure):
        problem = facts.session.failure if facts.session is not None else "the trainer does not answer"
        groups = amount(offered, "group of evaluations is", "groups of evaluations are")
        what = f"{groups} on offer to the trainer: {problem}"
        remedy = "see its log" if facts.session is not None else "start grpo_trainer"
        yield WaitReason("grpo_trainer", what, 0, fed.offered_s, remedy)
    elif waiting and run.state is RunState.RUNNING:
        taken = facts.view.counts.groups_open + offered
        groups = amount(waiting, "group of evaluations waits", "groups of evaluations wait")
        what = f"{groups}: {taken} of {fed.open_group_limit} groups are open"
        remedy = "none: each group that the trainer settles lets another open"
        yield WaitReason("grpo_trainer", what, 0, fed.offered_s, remedy)
    yield from _none_trained(facts)
    if run.spec.no_sampling and not waiting and offered < training.prompts_per_step:
        yield from _unfed(facts, offered, training.prompts_per_step)


def _none_trained(facts: RunFacts) -> Iterator[WaitReason]:
    """No group of its evaluations fits the run."""
    left_out: Counter[str] = Counter()
    for report in facts.view.sources:
        if report.offered or report.waiting or report.trained:
            return
        left_out.update(report.left_out)
    if left_out and facts.view.run.state in OPEN_RUN_STATES:
        what = f"none of {left_out.total()} groups of evaluations trained: {in_words(left_out)}"
        yield WaitReason("you", what, 0, 0.0, remedy_of_left_out(left_out) or "name other evaluations")


def _unfed(facts: RunFacts, offered: int, prompts: int) -> Iterator[WaitReason]:
    run, evaluations = facts.view.run, facts.supply.evaluations
    if run.state is not RunState.RUNNING:
        return
    held = offered if facts.session is None else min(offered, facts.session.num_held)
    has = f"the trainer has {held}" + (f" ({offered} are on offer to it)" if held < offered else "")
    need = f"a step takes {amount(prompts, 'group')}, {has}, and the run plans none itself"
    if evaluations:
        what = f"waiting for evaluations ({', '.join(evaluations)} bring groups): {need}"
        yield WaitReason("evaluation", what, 0, 0.0, f"see upcycle why {evaluations[0]}")
    elif facts.supply.sessions_end_in_s is not None:
        left_s = max(0.0, facts.supply.sessions_end_in_s)
        what = (
            f"waiting for graded sessions ({run.spec.sessions}); without one that can train the run ends in "
            f"{left_s:.0f} s: {need}"
        )
        yield WaitReason("you", what, 0, 0.0, "reward sessions of split train, several of each group")
    elif not run.spec.taskset:
        what = f"its sessions ({run.spec.sessions}) are used up: {need}"
        remedy = "none: the run ends; with --sessions-idle-s the next one takes what is rewarded as it goes"
        yield WaitReason("you", what, 0, 0.0, remedy)
    else:
        what = f"waiting for evaluations, and none is under way: {need}"
        taskset, model = run.spec.taskset, run.spec.policy.model
        remedy = f"upcycle eval {taskset} {model} --group 8 --trainable"
        yield WaitReason("you", what, 0, 0.0, remedy)
