"""Tasksets of a run that plays several and trains on none of the groups of one of them. Pure."""

from collections import Counter
from collections.abc import Iterator

from scenario_runner.domain.learning import WithoutStep, remedies
from scenario_runner.domain.mixes import gives_nothing, idle_text
from scenario_runner.domain.run_facts import RunFacts, WaitReason
from scenario_runner.domain.runs import OPEN_RUN_STATES
from scenario_runner.domain.sources import in_words


def idle_tasksets(facts: RunFacts) -> Iterator[WaitReason]:
    """Each taskset whose newest groups all ended without training."""
    run = facts.view.run
    if run.spec.training is None or run.state not in OPEN_RUN_STATES:
        return
    for report in facts.view.mix:
        if not gives_nothing(report, run.spec.training.prompts_per_step):
            continue
        ended = Counter(facts.waits.idle_outcomes.get(report.row.name, ()))
        how = f": {in_words(ended)}" if ended else ""
        what = remedies(WithoutStep(ended)) if ended else "see what its groups taught"
        remedy = (
            f"{what}; or a run without it, whose groups go to the other tasksets "
            f"(its episodes: upcycle trajectories list --run {run.run_id})"
        )
        yield WaitReason("you", f"alarm: {idle_text(report)}{how}", 0, 0.0, remedy)
