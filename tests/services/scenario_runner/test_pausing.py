"""Pausing, resuming and stopping a run: the planner's decisions on a real database."""

from datetime import timedelta

from tests.services.scenario_runner.planning import (
    PlannerHarness,
    check_conservation,
    eval_spec,
    open_database,
    train_spec,
)

from scenario_runner.domain.facts import Advanced, Stopping
from scenario_runner.domain.runs import EpisodeRow, EpisodeState, RunState


def named(rows: list[EpisodeRow]) -> dict[str, EpisodeRow]:
    return {row.episode_id: row for row in rows}


async def test_a_paused_run_plans_nothing_and_what_is_in_flight_settles(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.pause()
    members = planner.members(0)
    await planner.apply(*map(planner.graded, members), planner.settled(planner.group_id(0), members))
    assert await planner.plan_all() == 0
    assert (await planner.run()).state is RunState.PAUSED
    assert named(await planner.episodes())[members[0]].state is EpisodeState.TRAINED
    await planner.resume()
    assert await planner.plan_all() == 1
    await check_conservation(planner)


async def test_a_refill_that_becomes_due_while_paused_waits_for_resume(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.pause()
    await planner.pause()
    failed, other = planner.members(0)
    refill = failed[:-1] + "1"
    await planner.apply(planner.failed(failed), planner.graded(other))
    assert named(await planner.episodes())[refill].num_dispatches == 0
    announced = await planner.announced()
    assert announced[f"episode.requested/{refill}"] == 1
    assert f"episode.requested/{refill}/1" not in announced
    planner.now += timedelta(hours=1)
    await planner.sweep(queue_is_idle=True)
    assert not [key for key in await planner.announced() if key.startswith(f"episode.requested/{refill}/")]
    await planner.resume()
    await planner.resume()
    assert (await planner.announced())[f"episode.requested/{refill}/1"] == 1
    assert named(await planner.episodes())[refill].num_dispatches == 1
    await planner.apply(planner.graded(refill))
    assert (await planner.run()).num_graded == 2
    await check_conservation(planner)


async def test_a_pause_outlives_the_planner(planner: PlannerHarness, sql_url: str) -> None:
    await planner.submit(train_spec(), num_tasks=3)
    await planner.pause()
    reborn = PlannerHarness(await open_database(sql_url))
    try:
        assert (await reborn.run()).state is RunState.PAUSED
        assert await reborn.plan_all() == 0
        await reborn.resume()
        assert await reborn.plan_all() == 4
    finally:
        await reborn.database.stop()


async def test_a_paused_evaluation_goes_on_to_its_end(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(), num_tasks=2)
    await planner.pause()
    failed, *rest = [*planner.members(0), *planner.members(1)]
    await planner.apply(planner.failed(failed), *map(planner.graded, rest))
    assert (await planner.run()).state is RunState.PAUSED
    await planner.resume()
    await planner.apply(planner.graded(failed[:-1] + "1"))
    run = await planner.run()
    assert (run.state, run.num_graded) == (RunState.COMPLETED, 4)


async def test_a_run_that_stops_waits_for_its_trainer_to_settle_what_is_graded(
    planner: PlannerHarness,
) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    members = planner.members(1)
    await planner.apply(*map(planner.graded, members))
    await planner.stop()
    await planner.stop()
    run = await planner.run()
    assert (run.state, run.ending, run.ends_early) == (RunState.DRAINING, RunState.COMPLETED, True)
    announced = await planner.announced()
    assert announced[f"run.stopping/{planner.run_id}"] == 1
    assert sum(key.startswith("episode.cancelled/") for key in announced) == 6
    planner.now += timedelta(seconds=300)  # a step may take longer than the grace of a cancelled run
    await planner.sweep()
    assert (await planner.run()).state is RunState.DRAINING
    await planner.apply(Advanced(planner.run_id, 1, 1), planner.settled(planner.group_id(1), members))
    run = await planner.run()
    assert (run.state, run.step, run.failure) == (RunState.COMPLETED, 1, "")
    await check_conservation(planner)


async def test_a_grade_on_its_way_when_the_run_stops_is_the_trainers_to_settle(
    planner: PlannerHarness,
) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    members = planner.members(1)
    await planner.stop(is_delivered=False)
    assert not [key for key in await planner.announced() if key.startswith("episode.cancelled/")]
    await planner.apply(*map(planner.graded, members), Stopping(planner.run_id), Stopping(planner.run_id))
    states = named(await planner.episodes())
    assert {states[member].state for member in members} == {EpisodeState.GRADED}
    assert sum(row.state is EpisodeState.CANCELLED for row in states.values()) == 6
    await planner.apply(planner.settled(planner.group_id(1), members), Advanced(planner.run_id, 1, 1))
    assert (await planner.run()).state is RunState.COMPLETED
    await check_conservation(planner)


async def test_a_member_that_fails_while_the_run_stops_is_not_played_again(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.stop(is_delivered=False)
    await planner.apply(*map(planner.failed, planner.members(0)), Stopping(planner.run_id))
    run = await planner.run()
    counts = await planner.do(lambda unit: unit.counts(planner.run_id))
    assert (run.state, counts.requested, counts.groups_open) == (RunState.COMPLETED, 8, 0)


async def test_a_run_that_stops_without_a_trainer_ends_after_its_grace(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.apply(*map(planner.graded, planner.members(1)))
    await planner.stop()
    planner.now += timedelta(seconds=601)
    await planner.sweep()
    assert (await planner.announced())[f"run.stopping/{planner.run_id}/final"] == 1
    await planner.apply(Stopping(planner.run_id, is_final=True))
    await planner.apply(*await planner.settled_by_planner())
    assert (await planner.run()).state is RunState.COMPLETED
    await check_conservation(planner)


async def test_a_stop_during_the_last_step_leaves_nothing_behind(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(steps=1), num_tasks=3)
    await planner.apply(*map(planner.graded, planner.members(1)))
    await planner.stop()
    await planner.apply(Advanced(planner.run_id, 1, 1))
    await planner.apply(*await planner.settled_by_planner())
    assert (await planner.run()).state is RunState.COMPLETED
    await check_conservation(planner)


async def test_a_paused_run_can_be_stopped_at_once_when_nothing_is_graded(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    await planner.pause()
    await planner.apply(planner.failed(planner.members(0)[0]))
    await planner.stop()
    assert (await planner.run()).state is RunState.COMPLETED
    await check_conservation(planner)


async def test_a_stale_group_is_replaced_by_a_new_one(planner: PlannerHarness) -> None:
    """Refill: an excluded group is replaced by one of the next task."""
    await planner.begin(train_spec(), num_tasks=3)
    members = planner.members(0)
    await planner.apply(
        *map(planner.graded, members), planner.settled(planner.group_id(0), members, "excluded")
    )
    assert await planner.plan_all() == 1
    rows = await planner.episodes()
    assert max(row.group_id for row in rows) == planner.group_id(4)
    assert sum(row.state is EpisodeState.EXCLUDED for row in rows) == 2
