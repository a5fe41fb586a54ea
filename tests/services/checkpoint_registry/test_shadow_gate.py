"""`by_shadow`: the shadow graders, which nothing pays for, say which attempts of a gate are successes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness
from tests.services.checkpoint_registry.planner_double import GATE, PROFILE, evaluation_run
from tests.services.checkpoint_registry.watch_recipes import BATCH, played, watched

from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.domain.jobs import RequestState
from checkpoint_registry.domain.models import CheckpointState
from checkpoint_registry.domain.pairs import by_task, evidence_key
from checkpoint_registry.domain.runs import EpisodeOutcome, RunOutcome

Shadow = Callable[[EpisodeOutcome], bool | None]


async def judged(harness: RegistryHarness, shadow: Shadow, *, by_shadow: bool = True) -> str:
    """A candidate that succeeds in 90 % of attempts beside a head of 30 %, by the reward's grader."""
    harness.planner.training_run("run-train", MODEL, replace(GATE, by_shadow=by_shadow))
    await harness.save(1)
    await harness.drive()
    while await harness.state(1) is CheckpointState.EVALUATING:
        harness.clock.forward(1)
        run_id = harness.planner.order_of(1)
        harness.planner.finish_pair(run_id, 0.9, 0.3, harness.clock())
        run = harness.planner.runs[run_id]
        results = tuple(replace(one, shadow=shadow(one)) for one in run.results)
        harness.planner.runs[run_id] = replace(run, results=results)
        await harness.report(run_id)
    return await harness.reason(1)


def fooled(one: EpisodeOutcome) -> bool:
    """No success of the candidate is one."""
    return one.success and one.member % 2 == 1


async def test_a_candidate_that_fools_the_rewards_grader_is_held(harness: RegistryHarness) -> None:
    assert (await judged(harness, fooled)).startswith("held")
    assert await harness.head() == 0


async def test_without_the_option_the_rewards_grader_decides(harness: RegistryHarness) -> None:
    await judged(harness, fooled, by_shadow=False)
    assert await harness.head() == 1


async def test_a_candidate_whose_successes_are_confirmed_is_promoted(harness: RegistryHarness) -> None:
    reason = await judged(harness, lambda one: one.success)
    assert await harness.head() == 1
    assert reason.endswith("by the shadow graders, all 160 attempts counted")


async def test_a_taskset_without_shadow_graders_proves_nothing(harness: RegistryHarness) -> None:
    reason = await judged(harness, lambda _: None)
    assert "none of the 160 graded episodes of run run-" in reason
    assert "has a shadow grade, by which the gate judges" in reason
    assert await harness.head() == 0


async def test_a_few_missing_grades_cannot_help_and_are_counted(harness: RegistryHarness) -> None:
    """One attempt of the candidate at each of four tasks: promoted still, with these as failures."""
    reason = await judged(harness, without_grades_at(4))
    assert await harness.head() == 1
    assert "by the shadow graders, 156 of 160 attempts counted, 4 missing (without a shadow grade" in reason


async def test_many_missing_grades_hold_the_candidate(harness: RegistryHarness) -> None:
    """Where they are as failures of the candidate, nothing is gained."""
    reason = await judged(harness, without_grades_at(36))
    assert await harness.head() == 0
    assert reason.startswith("held: evidence incomplete: ")
    assert "attempts without a shadow grade or lost to infrastructure could turn the verdict" in reason


def without_grades_at(num_tasks: int) -> Shadow:
    """Each success is confirmed, and no first attempt of the candidate is graded at so many tasks."""

    def shadow(one: EpisodeOutcome) -> bool | None:
        is_ungraded = one.member == 0 and int(one.task_slug.removeprefix("t")) < num_tasks
        return None if is_ungraded and not one.failure_kind else one.success

    return shadow


@pytest.mark.parametrize(
    ("shadow", "failure", "outcome"), [(True, "", 1), (False, "", 0), (None, "", None), (None, "timeout", 0)]
)
def test_an_attempt_is_what_its_shadow_graders_say(
    shadow: bool | None, failure: str, outcome: int | None
) -> None:
    one = EpisodeOutcome("t", "f", True, not failure, 1, 1, failure_kind=failure, shadow=shadow)
    assert by_task([one], 1, by_shadow=True)["t"].candidate == (outcome,)


def test_evidence_by_other_graders_is_kept_apart() -> None:
    keys = {evidence_key(PROFILE, GATE), evidence_key(PROFILE, replace(GATE, by_shadow=True))}
    assert len(keys) == 2
    assert PROFILE.key() in keys


async def watched_head(harness: RegistryHarness) -> RegistryHarness:
    """By shadow a candidate became head, and its watch plays."""
    watched(harness)
    await judged(harness, lambda one: one.success)
    assert await harness.head() == 1
    return harness


async def finish(harness: RegistryHarness, lost: int, lost_by_shadow: int | None) -> None:
    """The newest run of a watch: head alone fails in so many pairs by the reward's grader, and in so many by
    the shadow graders; None: these graded nothing."""
    harness.clock.forward(1)
    run_id, order = list(harness.planner.orders.items())[-1]
    results = []
    for at in range(BATCH):
        said = None if lost_by_shadow is None else at >= lost_by_shadow
        head, before = played(order.version, 0, at, success=at >= lost), played(0, 1, at, success=True)
        results += [replace(head, shadow=said), replace(before, shadow=None if said is None else True)]
    run = harness.planner.runs[run_id]
    harness.planner.runs[run_id] = replace(
        run, outcome=RunOutcome.COMPLETED, finished_at=harness.clock(), results=tuple(results)
    )
    assert await harness.watching.collect(run_id)
    await harness.drive()


async def test_the_watch_takes_no_head_back_that_only_the_rewards_grader_calls_worse(
    harness: RegistryHarness,
) -> None:
    await finish(await watched_head(harness), BATCH, 0)
    assert await harness.head() == 1


async def test_the_watch_takes_back_what_the_shadow_graders_call_worse(harness: RegistryHarness) -> None:
    await finish(await watched_head(harness), 0, BATCH)
    assert await harness.head() == 0


async def test_a_watch_without_shadow_grades_is_tried_again_later_and_not_at_once(
    harness: RegistryHarness,
) -> None:
    await finish(await watched_head(harness), BATCH, None)
    num_orders = len(harness.planner.orders)
    await harness.drive()
    assert (await harness.head(), len(harness.planner.orders)) == (1, num_orders)
    (run,) = await SqlWatchStore(harness.database).runs(MODEL, 2)
    assert (run.state, run.detail) == (RequestState.FAILED, "no pair of it has shadow grades on both sides")
    harness.clock.forward(61)
    await harness.drive()
    assert len(harness.planner.orders) == num_orders + 1


async def test_a_later_evaluation_which_counts_rewards_takes_no_such_head_back(
    harness: RegistryHarness,
) -> None:
    await judged(harness, lambda one: one.success)
    for run_id, version, rate in (("run-before", 0, 0.9), ("run-later", 1, 0.0)):
        harness.clock.forward(60)
        harness.planner.runs[run_id] = evaluation_run(run_id, MODEL, version, PROFILE)
        harness.planner.finish(run_id, rate, harness.clock())
        await harness.report(run_id)
    assert await harness.head() == 1
