"""Pausing, resuming and stopping a run: the planner's decisions on a real database."""

from datetime import timedelta

from tests.services.scenario_runner.planning import (
    World,
    check_conservation,
    eval_spec,
    open_database,
    train_spec,
)

from scenario_runner.domain.facts import Advanced, Stopping
from scenario_runner.domain.runs import EpisodeRow, EpisodeState, RunState


def named(rows: list[EpisodeRow]) -> dict[str, EpisodeRow]:
    return {row.episode_id: row for row in rows}


async def test_a_paused_run_plans_nothing_and_what_is_in_flight_settles(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.pause()
    members = world.members(0)
    await world.apply(*map(world.graded, members), world.settled(world.group_id(0), members))
    assert await world.plan_all() == 0
    assert (await world.run()).state is RunState.PAUSED
    assert named(await world.episodes())[members[0]].state is EpisodeState.TRAINED
    await world.resume()
    assert await world.plan_all() == 1
    await check_conservation(world)


async def test_a_refill_that_becomes_due_while_paused_waits_for_resume(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.pause()
    await world.pause()
    failed, other = world.members(0)
    refill = failed[:-1] + "1"
    await world.apply(world.failed(failed), world.graded(other))
    assert named(await world.episodes())[refill].num_dispatches == 0
    announced = await world.announced()
    assert announced[f"episode.requested/{refill}"] == 1
    assert f"episode.requested/{refill}/1" not in announced
    world.now += timedelta(hours=1)
    await world.sweep(queue_is_idle=True)
    assert not [key for key in await world.announced() if key.startswith(f"episode.requested/{refill}/")]
    await world.resume()
    await world.resume()
    assert (await world.announced())[f"episode.requested/{refill}/1"] == 1
    assert named(await world.episodes())[refill].num_dispatches == 1
    await world.apply(world.graded(refill))
    assert (await world.run()).num_graded == 2
    await check_conservation(world)


async def test_a_pause_outlives_the_planner(world: World, sql_url: str) -> None:
    await world.submit(train_spec(), num_tasks=3)
    await world.pause()
    reborn = World(await open_database(sql_url))
    try:
        assert (await reborn.run()).state is RunState.PAUSED
        assert await reborn.plan_all() == 0
        await reborn.resume()
        assert await reborn.plan_all() == 4
    finally:
        await reborn.database.stop()


async def test_a_paused_evaluation_goes_on_to_its_end(world: World) -> None:
    await world.begin(eval_spec(), num_tasks=2)
    await world.pause()
    failed, *rest = [*world.members(0), *world.members(1)]
    await world.apply(world.failed(failed), *map(world.graded, rest))
    assert (await world.run()).state is RunState.PAUSED
    await world.resume()
    await world.apply(world.graded(failed[:-1] + "1"))
    run = await world.run()
    assert (run.state, run.num_graded) == (RunState.COMPLETED, 4)


async def test_a_run_that_stops_waits_for_its_trainer_to_settle_what_is_graded(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    members = world.members(1)
    await world.apply(*map(world.graded, members))
    await world.stop()
    await world.stop()
    run = await world.run()
    assert (run.state, run.ending, run.ends_early) == (RunState.DRAINING, RunState.COMPLETED, True)
    announced = await world.announced()
    assert announced[f"run.stopping/{world.run_id}"] == 1
    assert sum(key.startswith("episode.cancelled/") for key in announced) == 6
    world.now += timedelta(seconds=300)  # a step may take longer than the grace of a cancelled run
    await world.sweep()
    assert (await world.run()).state is RunState.DRAINING
    await world.apply(Advanced(world.run_id, 1, 1), world.settled(world.group_id(1), members))
    run = await world.run()
    assert (run.state, run.step, run.failure) == (RunState.COMPLETED, 1, "")
    await check_conservation(world)


async def test_a_grade_on_its_way_when_the_run_stops_is_the_trainers_to_settle(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    members = world.members(1)
    await world.stop(is_delivered=False)
    assert not [key for key in await world.announced() if key.startswith("episode.cancelled/")]
    await world.apply(*map(world.graded, members), Stopping(world.run_id), Stopping(world.run_id))
    states = named(await world.episodes())
    assert {states[member].state for member in members} == {EpisodeState.GRADED}
    assert sum(row.state is EpisodeState.CANCELLED for row in states.values()) == 6
    await world.apply(world.settled(world.group_id(1), members), Advanced(world.run_id, 1, 1))
    assert (await world.run()).state is RunState.COMPLETED
    await check_conservation(world)


async def test_a_member_that_fails_while_the_run_stops_is_not_played_again(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.stop(is_delivered=False)
    await world.apply(*map(world.failed, world.members(0)), Stopping(world.run_id))
    run = await world.run()
    counts = await world.do(lambda unit: unit.counts(world.run_id))
    assert (run.state, counts.requested, counts.groups_open) == (RunState.COMPLETED, 8, 0)


async def test_a_run_that_stops_without_a_trainer_ends_after_its_grace(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.apply(*map(world.graded, world.members(1)))
    await world.stop()
    world.now += timedelta(seconds=601)
    await world.sweep()
    assert (await world.announced())[f"run.stopping/{world.run_id}/final"] == 1
    await world.apply(Stopping(world.run_id, is_final=True))
    await world.apply(*await world.settled_by_planner())
    assert (await world.run()).state is RunState.COMPLETED
    await check_conservation(world)


async def test_a_stop_during_the_last_step_leaves_nothing_behind(world: World) -> None:
    await world.begin(train_spec(steps=1), num_tasks=3)
    await world.apply(*map(world.graded, world.members(1)))
    await world.stop()
    await world.apply(Advanced(world.run_id, 1, 1))
    assert (await world.run()).state is RunState.COMPLETED
    await check_conservation(world)


async def test_a_paused_run_can_be_stopped_at_once_when_nothing_is_graded(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    await world.pause()
    await world.apply(world.failed(world.members(0)[0]))
    await world.stop()
    assert (await world.run()).state is RunState.COMPLETED
    await check_conservation(world)


async def test_a_stale_group_is_replaced_by_a_new_one(world: World) -> None:
    """Refill: an excluded group frees its slot, and the next task takes it."""
    await world.begin(train_spec(), num_tasks=3)
    members = world.members(0)
    await world.apply(*map(world.graded, members), world.settled(world.group_id(0), members, "excluded"))
    assert await world.plan_all() == 1
    rows = await world.episodes()
    assert max(row.group_id for row in rows) == world.group_id(4)
    assert sum(row.state is EpisodeState.EXCLUDED for row in rows) == 2
