"""New tasks of a run, for `why`: how many groups play them, and generators of which none come. Pure."""

from collections.abc import Iterator

from scenario_runner.domain.new_tasks import GIVES_NONE, NewTaskState
from scenario_runner.domain.run_facts import RunFacts, WaitReason
from scenario_runner.domain.runs import OPEN_RUN_STATES
from upcycle.wording import amount


def of_new_tasks(facts: RunFacts) -> str:
    """How many of a run's groups play new tasks, and how many such tasks it has."""
    report = facts.view.new_tasks
    if report is None or not report.num_ordered:
        return ""
    num_playing, num_groups = report.by_state.get(NewTaskState.PLAYING, 0), facts.view.run.next_position
    num_filtered = report.by_state.get(NewTaskState.FILTERED, 0)
    filtered = f", {num_filtered} left out as too hard or too easy" if num_filtered else ""
    return (
        f"; {report.num_groups} of {num_groups} groups are on new tasks, of which {report.num_ordered} were "
        f"ordered{filtered} and {amount(num_playing, 'is', 'are')} playing"
    )


def none_come(facts: RunFacts) -> Iterator[WaitReason]:
    """That of the newest orders none came."""
    report = facts.view.new_tasks
    if report is None or facts.view.run.state not in OPEN_RUN_STATES or len(report.none_came) < GIVES_NONE:
        return
    newest = report.none_came[0]
    what = (
        f"alarm: none of the last {len(report.none_came)} new tasks that were ordered is played; the newest, "
        f"of {newest.parent_slug!r}: {newest.state.value}, {newest.detail}"
    )
    read = "proposed_by" if newest.solved else "left_over"
    maker = read if newest.proposed_by else "generator"
    remedy = f"mend @{newest.scenario}.{maker} in a new run; this one goes on with its taskset"
    yield WaitReason("you", what, 0, 0.0, remedy)
