"""A run whose groups are too old to train, as when its engine refuses new versions, pauses by name."""

from dataclasses import replace

import pytest
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, train_spec
from tests.services.scenario_runner.test_explaining import ENGINE, run_facts
from tests.services.scenario_runner.test_nothing_to_learn import settle, train

from episodes import Purpose
from scenario_runner.domain.explain import explain
from scenario_runner.domain.learning import NoSteps, why_no_steps
from scenario_runner.domain.runs import NUM_RECENT, RunState
from upcycle.run_config import PolicyChoice, Training

ZERO, STALE = "excluded(zero_spread)", "excluded(stale)"


async def settle_stale(planner: PlannerHarness, *groups: int) -> None:
    for group in groups:
        await settle(planner, group, (0.0, 1.0), "stale")


@pytest.mark.parametrize("num_steps", [0, 1])
async def test_a_run_of_stale_groups_pauses_with_the_cause(planner: PlannerHarness, num_steps: int) -> None:
    await planner.begin(train_spec(prompts=1, no_step_groups=3), num_tasks=3)
    for group in range(num_steps):
        await train(planner, group, step=group + 1)
    await settle_stale(planner, *range(num_steps, num_steps + 2))
    assert (await planner.run()).state is RunState.RUNNING
    await settle_stale(planner, num_steps + 2)
    run = await planner.run()
    assert (run.state, run.ending, run.step) == (RunState.PAUSED, None, num_steps)
    since = " after step 1" if num_steps else ""
    assert run.failure.startswith(
        f"paused itself: 3 groups in a row were settled without a step{since}, and 3 of them were stale"
    )
    assert f"(upcycle why {planner.run_id} names it)" in run.failure
    assert not (await planner.announced())[f"run.stopping/{planner.run_id}"]
    await check_conservation(planner)


async def test_a_run_whose_old_policy_solves_most_tasks_is_not_complete_either(
    planner: PlannerHarness,
) -> None:
    await planner.begin(train_spec(prompts=2, no_step_groups=4), num_tasks=3)
    for group in range(2):
        await train(planner, group, step=1)
    for group in (2, 3, 4):
        await settle(planner, group, (1.0, 1.0))
    await settle_stale(planner, 5, 6)
    assert (await planner.run()).state is RunState.RUNNING
    await settle(planner, 7, (1.0, 1.0))
    run = await planner.run()
    assert (run.state, run.ending) == (RunState.PAUSED, None)
    assert "6 groups in a row" in run.failure
    assert "2 of them were stale" in run.failure


async def test_a_resumed_run_is_given_time_to_sample_with_what_was_mended(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(prompts=1, no_step_groups=2), num_tasks=3)
    await settle_stale(planner, 0, 1)
    assert (await planner.run()).state is RunState.PAUSED
    await planner.resume()
    await planner.plan_all()
    await settle_stale(planner, 2)
    run = await planner.run()
    assert (run.state, run.failure) == (RunState.RUNNING, "")
    await train(planner, 3, step=1)
    await settle_stale(planner, 4)
    assert (await planner.run()).state is RunState.RUNNING
    await settle_stale(planner, 5)
    assert (await planner.run()).state is RunState.PAUSED
    await check_conservation(planner)


async def test_a_run_that_nothing_mended_pauses_again(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(prompts=1, no_step_groups=2), num_tasks=3)
    await settle_stale(planner, 0, 1)
    await planner.resume()
    await planner.plan_all()
    await settle_stale(planner, 2, 3)
    assert (await planner.run()).state is RunState.PAUSED


@pytest.mark.parametrize("num_steps", [0, 1])
async def test_a_resumed_run_that_solved_its_tasks_ends_and_does_not_pause(
    planner: PlannerHarness, num_steps: int
) -> None:
    """What was too old before a person mended it says nothing of the groups after it."""
    await planner.begin(train_spec(prompts=1, no_step_groups=40), num_tasks=3)
    for group in range(num_steps):
        await train(planner, group, step=group + 1)
    await settle_stale(planner, *range(num_steps, num_steps + 40))
    assert (await planner.run()).state is RunState.PAUSED
    await planner.resume()
    await planner.plan_all()
    first = num_steps + 40
    for group in range(first, first + 39):  # more than the plan remembers ends of episodes
        await settle(planner, group, (1.0, 1.0))
    run = await planner.run()
    assert (len(run.recent_ends), run.state, run.failure) == (NUM_RECENT, RunState.RUNNING, "")
    await settle(planner, first + 39, (1.0, 1.0))
    run = await planner.run()
    ending = RunState.COMPLETED if num_steps else RunState.FAILED
    assert (run.state, run.ending) == (RunState.DRAINING, ending)
    assert run.failure.startswith("nothing to learn: 40 groups in a row")
    assert "harder tasks: these are solved" in run.failure
    assert "stale" not in run.failure
    await check_conservation(planner)


async def test_one_old_group_after_the_resume_does_not_pause_it(planner: PlannerHarness) -> None:
    """It was sampled before. A run that a person paused and resumed counts on."""
    await planner.begin(train_spec(prompts=2, no_step_groups=4), num_tasks=3)
    await settle_stale(planner, 0, 1, 2, 3)
    await planner.resume()
    await planner.plan_all()
    await settle_stale(planner, 4)
    for group in (5, 6):
        await settle(planner, group, (1.0, 1.0))
    await planner.pause()
    await planner.resume()
    await planner.plan_all()
    for group in (7, 8):
        await settle(planner, group, (1.0, 1.0))
    run = await planner.run()
    assert (run.state, run.ending) == (RunState.DRAINING, RunState.FAILED)
    assert "5 groups in a row" in run.failure


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ({ZERO: 3, STALE: 3}, None),
        ({ZERO: 4}, NoSteps.NOTHING_TO_LEARN),
        ({ZERO: 4, STALE: 1}, NoSteps.NOTHING_TO_LEARN),
        ({ZERO: 4, STALE: 2}, NoSteps.TOO_OLD),
        ({STALE: 4}, NoSteps.TOO_OLD),
        ({ZERO: 2, "excluded(held_out)": 2}, NoSteps.NOTHING_TO_LEARN),
    ],
)
def test_stale_groups_say_nothing_about_what_there_is_to_learn(
    outcomes: dict[str, int], why: NoSteps | None
) -> None:
    assert why_no_steps(outcomes, Training(prompts_per_step=2, no_step_groups=4)) is why


@pytest.mark.parametrize("purpose", [Purpose.TRAIN, Purpose.EVAL])
def test_an_engine_that_refused_its_version_is_named_while_it_serves_the_old_one(purpose: Purpose) -> None:
    failed = replace(ENGINE, state="failed", reason="fetch_failed: v7: [Errno 20] Not a directory")
    (reason,), summary = explain(run_facts(purpose, engines=[ENGINE, failed]))
    assert (reason.owner, reason.episodes) == ("policy_engine", 0)
    assert "engine e1 still serves v3 on channel latest" in summary
    assert "fetch_failed: v7: [Errno 20] Not a directory" in summary
    assert "it tries again at least every 30 s" in reason.remedy


def test_an_engine_that_refused_a_version_does_not_concern_runs_of_others() -> None:
    failed = replace(ENGINE, state="failed", reason="canary mismatch", held_versions=(12,))
    others = [ENGINE, replace(failed, channel="head")]
    assert explain(run_facts(engines=others))[0] == []
    assert explain(run_facts(Purpose.EVAL, PolicyChoice("incident", None, 12), engines=[failed]))[0] == []
