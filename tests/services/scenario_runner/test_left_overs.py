"""Runs that play against themselves with an order above 1: what a failed attempt leaves is played, too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.fleets import Fleet
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation
from tests.services.scenario_runner.support import refusal, register, submit
from tests.services.scenario_runner.test_self_play import Played
from tests.services.scenario_runner.test_self_play_service import SELF_PLAY, hiding, self_play_run

from scenario_runner.domain.environments import EnvironmentDescription, TaskOrder
from scenario_runner.domain.new_tasks import NewTaskState
from scenario_runner.domain.self_play import attempt_that_leaves
from scenario_runner.usecases.run_sources import CheckProposers
from service_kit.errors import InvalidRequest
from upcycle.run_config.self_play import Roles


@pytest.fixture
def played(planner: PlannerHarness) -> Played:
    return Played(planner)


async def begin(played: Played, *proposals: float, **options: Any) -> None:
    """A run of this order whose first group proposed, in the groups 2 and 3 where both did."""
    await played.begin(**options)
    await played.grade(0, *proposals)
    await played.go_on()


async def test_a_failed_attempt_at_a_proposal_leaves_a_task_that_a_group_plays(played: Played) -> None:
    await begin(played, 1.0, 0.0, self_play_order=2)
    assert await played.solving() == {2: 0}
    await played.solve(2, 1.0, 0.0)
    await played.go_on()

    proposal, left = await played.rows()
    failed = played.planner.members(2)[1]
    assert (left.proposed_by, left.scenario, left.solved) == (failed, "repair", False)
    assert (left.parent_slug, left.parent_args) == (proposal.slug, proposal.args_json)
    asked = played.generator.asked[1]
    assert (asked.args_json, asked.solved) == (proposal.args_json, False)
    assert asked.proposal == {"answer": f"of body-{failed[-10:]}", "trajectory": {"turns": []}}
    assert (await played.solving())[max(await played.solving())] == left.number
    await check_conservation(played.planner)


async def test_what_is_left_pays_no_proposer_and_holds_up_no_offer(played: Played) -> None:
    await begin(played, 1.0, 0.0, self_play_order=2)
    await played.solve(2, 1.0, 0.0)
    await played.go_on()
    assert await played.paid() == [0.1, -1.0], "while what was left is still played"
    (at,) = [group for group, number in (await played.solving()).items() if number == 1]
    await played.solve(at, 1.0, 0.0)
    await played.go_on()
    assert len(await played.offers()) == 1
    assert [row.state for row in await played.rows()] == [NewTaskState.RETIRED, NewTaskState.RETIRED]
    assert await played.queued(2) is None


@pytest.mark.parametrize(("order", "num_rows"), [(1, 1), (2, 2), (3, 3)])
async def test_no_more_is_left_than_the_order_of_the_run_allows(
    played: Played, order: int, num_rows: int
) -> None:
    await begin(played, 1.0, 0.0, self_play_order=order)
    for number in range(num_rows):
        (at,) = [group for group, played_one in (await played.solving()).items() if played_one == number]
        await played.solve(at, 1.0, 0.0)
        await played.go_on()
    assert len(await played.rows()) == num_rows


@pytest.mark.parametrize("rewards", [(0.0, 0.0), (1.0, 1.0)])
async def test_nothing_is_left_of_what_none_or_all_solved(played: Played, rewards: tuple[float, ...]) -> None:
    await begin(played, 1.0, 0.0, self_play_order=2)
    await played.solve(2, *rewards)
    await played.go_on()
    assert len(await played.rows()) == 1


async def test_an_attempt_that_changed_nothing_leaves_no_task(played: Played) -> None:
    await played.begin(self_play_order=2)
    played.generator.answers = [{"n": 7}, {"n": 7, "by": 1}]
    await played.grade(0, 1.0, 0.0)
    await played.go_on()
    await played.solve(2, 1.0, 0.0)
    await played.go_on()
    proposal, left = await played.rows()
    assert (left.state, left.detail) == (NewTaskState.DUPLICATE, f"it is {proposal.slug} again")
    assert set((await played.solving()).values()) == {0}
    await check_conservation(played.planner)


async def test_the_failed_attempt_that_came_furthest_leaves_the_task(played: Played) -> None:
    await begin(played, 1.0, 0.0, self_play_order=1)
    await played.solve(2, 1.0, 0.0)
    rows = [row for row in await played.planner.episodes() if row.new_task == 0]
    solved, failed = sorted(rows, key=lambda row: -row.reward)
    assert attempt_that_leaves([solved, failed]) == failed
    better, same, lost = (
        replace(failed, episode_id=name, member=number, reward=reward, body_key=key)
        for name, number, reward, key in (("a", 3, 0.4, "k"), ("b", 4, 0.4, "k"), ("c", 2, 0.9, ""))
    )
    assert attempt_that_leaves([lost, same, failed, better, solved]) == better
    assert attempt_that_leaves([failed, better]) is None, "nobody solved it"
    assert attempt_that_leaves([solved, lost]) is None, "it was not stored"
    assert attempt_that_leaves([solved, replace(better, graded_at=None)]) is None


async def test_a_process_reads_what_a_failed_attempt_leaves(fleet: Fleet) -> None:
    order = TaskOrder(
        SELF_PLAY, "find", 1, '{"number":3}', solved=False, proposal={"answer": "5", "trajectory": {}}
    )
    assert (await fleet.hosts.generate(order)).arguments == {"number": 5, "below": 9}
    assert (await fleet.hosts.describe(SELF_PLAY)).left_overs == {"find"}


async def test_an_order_of_a_scenario_that_leaves_nothing_is_refused_by_name() -> None:
    async def describe(_: object) -> EnvironmentDescription:
        return EnvironmentDescription("bugs", "1", {}, (), proposers={"repair": "inject"})

    check = CheckProposers(describe)
    await check(SELF_PLAY, Roles("inject", "repair"))
    with pytest.raises(InvalidRequest) as raised:
        await check(SELF_PLAY, Roles("inject", "repair", 2))
    assert str(raised.value) == (
        "spec.training.self_play_order is 2, and of environment 'bugs' the scenario 'repair' does not say "
        "what a failed attempt leaves: write @repair.left_over in its file, or leave the option out"
    )


async def test_an_order_is_taken_and_looked_at_when_a_run_is_submitted(runner: Runner) -> None:
    await register(runner, hiding("hide", "find"))
    assert (await submit(runner, self_play_run(self_play_order=2))).run_id
    error = await refusal(submit(runner, self_play_run(self_play_order=9)))
    assert "spec.training.self_play_order must be >= 1 and <= 8" in str(error.details())
