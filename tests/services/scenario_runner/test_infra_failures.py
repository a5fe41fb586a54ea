"""A training run of which too many episodes fail pauses itself, and says of what."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.services.scenario_runner.planning import (
    START,
    PlannerHarness,
    check_conservation,
    eval_spec,
    train_spec,
)

from scenario_runner.domain.plan import LOST_WHILE_OPENING, ONE_RESTART, Loss, lost_at_once
from scenario_runner.domain.runs import EpisodeState, RunState
from scenario_runner.usecases.views import view_of
from upcycle.run_config import RunSpec


def big(max_infra_failures: float = 0.5) -> RunSpec:
    """40 open groups of two; it would fail after 40 groups without a grade."""
    spec = train_spec(prompts=20)
    assert spec.training is not None
    return replace(spec, training=replace(spec.training, max_infra_failures=max_infra_failures))


async def fail(
    planner: PlannerHarness, num_failed: int, num_graded: int, kind: str = "scenario_error"
) -> None:
    """So many of its planned episodes, the failures first."""
    planned = [row.episode_id for row in await planner.episodes() if row.state is EpisodeState.PLANNED]
    for episode in planned[:num_failed]:
        await planner.apply(planner.failed(episode, kind))
    await planner.apply(*map(planner.graded, planned[num_failed : num_failed + num_graded]))


async def test_the_33rd_failure_of_64_pauses_the_run_and_the_32nd_does_not(planner: PlannerHarness) -> None:
    await planner.begin(big(), num_tasks=50)
    await fail(planner, 32, 0)
    assert (await planner.run()).state is RunState.RUNNING
    await fail(planner, 1, 0, kind="external_failure")
    run = await planner.run()
    assert run.state is RunState.PAUSED
    assert run.failure == (
        "paused itself: 33 of the last 33 episodes failed without the policy's doing; failures until now: "
        "32 scenario_error, 1 external_failure; the newest: detail"
    )
    view = await planner.do(lambda unit: view_of(unit, run))
    assert view.notice == run.failure
    await check_conservation(planner)


async def test_half_of_the_episodes_may_fail(planner: PlannerHarness) -> None:
    await planner.begin(big(), num_tasks=50)
    for _ in range(3):
        await fail(planner, 8, 8)
    assert (await planner.run()).state is RunState.RUNNING


async def test_a_run_that_is_resumed_begins_to_count_again(planner: PlannerHarness) -> None:
    await planner.begin(big(), num_tasks=50)
    await fail(planner, 33, 0)
    await planner.resume()
    run = await planner.run()
    assert (run.state, run.failure, run.recent_ends) == (RunState.RUNNING, "", "")
    await fail(planner, 5, 5)
    assert (await planner.run()).state is RunState.RUNNING
    await check_conservation(planner)


@pytest.mark.parametrize(("limit", "num_failed"), [(0.0, 1), (0.25, 17)])
async def test_the_share_may_be_chosen(planner: PlannerHarness, limit: float, num_failed: int) -> None:
    await planner.begin(big(limit), num_tasks=50)
    await fail(planner, num_failed - 1, 0)
    assert (await planner.run()).state is RunState.RUNNING
    await fail(planner, 1, 0)
    assert (await planner.run()).state is RunState.PAUSED


async def test_a_share_of_one_pauses_never(planner: PlannerHarness) -> None:
    await planner.begin(big(1.0), num_tasks=50)
    await fail(planner, 70, 0)
    assert (await planner.run()).state is RunState.RUNNING


async def test_what_the_policy_did_pauses_nothing(planner: PlannerHarness) -> None:
    await planner.begin(big(), num_tasks=50)
    await fail(planner, 40, 0, kind="policy_unreadable")
    assert (await planner.run()).state is RunState.RUNNING


async def test_an_evaluation_plays_on(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(group_size=1), num_tasks=50)
    for _ in range(12):
        await fail(planner, 6, 0)
        await planner.plan_all()
    assert (await planner.run()).state is RunState.RUNNING


async def lose(planner: PlannerHarness, count: int, attempt: int) -> None:
    """So many of these attempts, a second after those that were lost before."""
    planner.now += timedelta(seconds=1)
    rows = [row for row in await planner.episodes() if row.state is EpisodeState.PLANNED]
    lost = [row.episode_id for row in rows if row.attempt == attempt][:count]
    assert len(lost) == count
    for episode in lost:
        await planner.apply(planner.failed(episode, "environment_lost"))


async def test_a_restart_that_takes_every_episode_once_pauses_nothing(planner: PlannerHarness) -> None:
    await planner.begin(big(), num_tasks=50)
    await lose(planner, 40, attempt=0)
    await lose(planner, 40, attempt=0)
    assert (await planner.run()).state is RunState.RUNNING
    again = [row for row in await planner.episodes() if row.state is EpisodeState.PLANNED]
    assert {row.attempt for row in again} == {1}
    await planner.apply(*(planner.graded(row.episode_id) for row in again))
    assert (await planner.run()).state is RunState.RUNNING
    await check_conservation(planner)


async def test_what_is_lost_again_after_that_pauses_the_run(planner: PlannerHarness) -> None:
    await planner.begin(big(), num_tasks=50)
    await lose(planner, 80, attempt=0)
    await lose(planner, 32, attempt=1)
    assert (await planner.run()).state is RunState.RUNNING
    await lose(planner, 1, attempt=1)
    run = await planner.run()
    assert run.state is RunState.PAUSED
    assert run.failure.startswith("paused itself: 33 of the last 64 episodes failed")


async def test_losses_that_are_far_apart_pause_the_run(planner: PlannerHarness) -> None:
    await planner.begin(big(), num_tasks=50)
    await lose(planner, 40, attempt=0)
    for _ in range(32):
        planner.now += 2 * ONE_RESTART
        await lose(planner, 1, attempt=1)
    assert (await planner.run()).state is RunState.RUNNING
    planner.now += 2 * ONE_RESTART
    await lose(planner, 1, attempt=1)
    assert (await planner.run()).state is RunState.PAUSED


async def test_a_fleet_that_dies_at_each_opening_pauses_the_run(planner: PlannerHarness) -> None:
    """Its episodes were dispatched together and wait: none was being played when the first was lost."""
    await planner.begin(big(), num_tasks=50)
    await lose(planner, 8, attempt=0)
    for _ in range(4):
        planner.now += LOST_WHILE_OPENING
        assert (await planner.run()).state is RunState.RUNNING
        await lose(planner, 8, attempt=0)
    assert (await planner.run()).state is RunState.RUNNING
    await lose(planner, 1, attempt=0)
    assert (await planner.run()).state is RunState.PAUSED


@pytest.mark.parametrize(
    ("began_and_lost", "num_newest", "at_once"),
    [
        ([], 4, 0),
        ([(5, 9), (2, 6), (1, 4)], 3, 2),
        ([(905, 909), (902, 906), (901, 904)], 1, 0),  # 904 is less than 600 s ago
        ([(4, 4)], 1, 0),
        ([(950, 960), (2, 6), (1, 4)], 3, 2),
        ([(950, 960), (2, 6), (1, 4)], 1, 1),  # 4 was more than 600 s ago
    ],
)
def test_what_was_lost_at_once(began_and_lost: list[tuple[int, int]], num_newest: int, at_once: int) -> None:
    assert lost_at_once(some_losses(began_and_lost), num_newest, START + timedelta(seconds=1000)) == at_once


def test_what_never_opened_was_lost_at_once_only_within_a_minute() -> None:
    losses = some_losses([(1, 65), (1, 64), (1, 4)])
    assert lost_at_once(losses, 3, START + timedelta(seconds=100)) == 3
    waited = [replace(loss, opened=False) for loss in losses]
    assert lost_at_once(waited, 3, START + timedelta(seconds=100)) == 2


def some_losses(began_and_lost: list[tuple[int, int]]) -> list[Loss]:
    """Losses of opened environments, in seconds since the start."""
    return [Loss(START + timedelta(seconds=a), START + timedelta(seconds=b), True) for a, b in began_and_lost]
