"""The planner's decisions on a real database, SQLite and Postgres."""

import asyncio
from dataclasses import replace
from datetime import timedelta

from tests.services.scenario_runner.planning import (
    RULES,
    World,
    check_conservation,
    eval_spec,
    train_spec,
)

from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.domain import plan as decisions
from scenario_runner.domain.facts import Advanced, Fact
from scenario_runner.domain.runs import EpisodeState, RunState
from scenario_runner.usecases.planning import plan_more
from sql_store import Database


async def test_a_training_run_fills_its_slots_and_no_more(world: World) -> None:
    await world.submit(train_spec(), num_tasks=3)
    assert await world.plan_all() == 4
    assert await world.plan_all() == 0
    episodes = await world.episodes()
    assert [row.episode_id for row in episodes] == [
        member for group in range(4) for member in world.members(group)
    ]
    announced = await world.announced()
    assert announced[f"episode.requested/{episodes[0].episode_id}"] == 1
    assert announced[f"episode.requested/{episodes[0].episode_id}/1"] == 1


async def test_two_planners_take_turns(world: World, sql_url: str) -> None:
    await world.submit(train_spec(), num_tasks=3)
    other = Database(sql_url)
    await other.start()
    plans = [world.plan, SqlPlan(other, now=lambda: world.now)]
    planned = await asyncio.gather(
        *(plan.transact(lambda unit: plan_more(unit, world.run_id, RULES)) for plan in plans * 3)
    )
    await other.stop()
    assert sum(planned) == 4
    assert len(await world.episodes()) == 8
    assert set((await world.announced()).values()) == {1}


async def test_a_slot_is_freed_only_when_its_group_is_settled(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    group, members = world.group_id(0), world.members(0)
    await world.apply(*(world.graded(member) for member in members))
    assert await world.plan_all() == 0
    await world.apply(world.settled(group, members))
    assert await world.plan_all() == 1
    states = {row.episode_id: (row.state, row.reason) for row in await world.episodes()}
    assert states[members[0]] == (EpisodeState.TRAINED, "step 1")


async def test_an_evaluation_plays_every_task_in_a_bounded_window(world: World) -> None:
    await world.submit(eval_spec(), num_tasks=5)
    assert await world.plan_all() == 3  # 6 episodes in flight / group of 2
    played: set[str] = set()
    while (await world.run()).state is RunState.RUNNING:
        waiting = [row for row in await world.episodes() if row.is_unsettled]
        assert len(waiting) <= RULES.eval_episodes_in_flight
        played.update(row.episode_id for row in waiting)
        await world.apply(*(world.graded(row.episode_id, 0.5) for row in waiting[:3]))
        await world.plan_all()
    run = await world.run()
    assert run.state is RunState.COMPLETED
    assert (run.num_graded, run.reward_mean, run.success_rate) == (10, 0.5, 0.0)
    assert len(played) == 10
    assert sorted({row.task_position for row in await world.episodes()}) == [0, 1, 2, 3, 4]
    assert (await world.announced())[f"run.finished/{world.run_id}"] == 1


async def test_a_fact_heard_twice_changes_nothing(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    group, (first, second) = world.group_id(0), world.members(0)
    facts: list[Fact] = [world.graded(first), world.failed(second), world.graded(f"{group}-e001-a1")]
    facts += [world.settled(group, [first, f"{group}-e001-a1"])]
    await world.apply(*facts)
    before = await world.episodes(), await world.run(), await world.announced()
    await world.apply(*facts, *facts)
    # And contradictions that come late lose: the first terminal state stands.
    await world.apply(world.failed(first), world.graded(second), world.settled(group, [], "excluded"))
    assert (await world.episodes(), await world.run(), await world.announced()) == before


async def test_a_settled_group_cancels_the_members_it_did_not_wait_for(world: World) -> None:
    await world.begin(train_spec(), num_tasks=3)
    group = world.group_id(0)
    await world.apply(
        world.graded(f"{group}-e000-a0"), world.settled(group, [f"{group}-e000-a0"], "excluded")
    )
    states = [(row.state.value, row.reason) for row in await world.episodes() if row.group_id == group]
    assert states == [("excluded", "zero_spread"), ("cancelled", "group_settled")]
    assert (await world.announced())[f"episode.cancelled/{group}-e001-a0"] == 1


async def test_the_last_step_ends_a_run_at_once(world: World) -> None:
    await world.begin(train_spec(steps=1), num_tasks=3)
    trained, members, graded = world.group_id(0), world.members(0), world.members(1)[0]
    await world.apply(*map(world.graded, members), world.graded(graded), world.settled(trained, members))
    await world.apply(Advanced(world.run_id, 1, 1))
    run = await world.run()
    assert (run.state, run.policy_version) == (RunState.COMPLETED, 1)
    counts = await world.do(lambda unit: unit.counts(world.run_id))
    assert {state.value: count for state, count in counts.by_state.items()} == {"trained": 2, "cancelled": 6}
    assert (await world.announced())[f"run.finished/{world.run_id}"] == 1
    assert await world.plan_all() == 0


async def test_what_is_overdue_fails_by_name_and_what_was_lost_is_queued_again(world: World) -> None:
    await world.begin(replace(eval_spec(group_size=1), episode_deadline_s=10), num_tasks=2)
    opened, lost = [row.episode_id for row in await world.episodes()]
    await world.do(lambda unit: unit.note_opened([opened]))
    world.now += timedelta(seconds=11)
    await world.sweep(queue_is_idle=False)
    announced = await world.announced()
    assert announced[f"episode.outcome/{opened}"] == 1
    assert announced[f"episode.requested/{opened[:-1]}1"] == 1
    assert f"episode.requested/{lost}/2" not in announced  # it may still be in the queue
    await world.sweep(queue_is_idle=True)
    assert (await world.announced())[f"episode.requested/{lost}/2"] == 1
    await world.sweep(queue_is_idle=True)
    assert f"episode.requested/{lost}/3" not in await world.announced()


async def test_a_grade_that_crossed_our_own_timeout_stands(world: World) -> None:
    await world.begin(replace(train_spec(), episode_deadline_s=10), num_tasks=3)
    slow, other = world.members(0)[0], world.members(1)[0]
    await world.do(lambda unit: unit.note_opened([slow, other]))
    world.now += timedelta(seconds=11)
    await world.sweep()
    states = {row.episode_id: row.state for row in await world.episodes()}
    assert states[slow] is EpisodeState.FAILED
    assert states[slow[:-1] + "1"] is EpisodeState.PLANNED
    # The grade was in the stream first, so our failure was dropped there as its duplicate.
    await world.apply(world.graded(slow), world.graded(slow))
    episodes = {row.episode_id: row for row in await world.episodes()}
    assert (episodes[slow].state, episodes[slow].reason) == (EpisodeState.GRADED, "")
    assert episodes[slow[:-1] + "1"].reason == "graded_after_all"
    assert (await world.run()).num_graded == 1
    # Too late for its group: the ledger still has to hear that nobody will use it.
    group = other.rsplit("-e", 1)[0]
    await world.apply(world.settled(group, [], "excluded"), world.graded(other))
    assert (await world.announced())[f"episode.cancelled/{other}"] == 1
    assert {row.episode_id: row.state for row in await world.episodes()}[other] is EpisodeState.FAILED
    await check_conservation(world)


def test_each_epoch_is_a_permutation_and_epochs_differ() -> None:
    order = [index for _, index in decisions.tasks_from(seed=7, num_tasks=50, position=0, count=150)]
    epochs = [order[start : start + 50] for start in (0, 50, 100)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    resumed = [index for _, index in decisions.tasks_from(seed=7, num_tasks=50, position=70, count=20)]
    assert resumed == order[70:90]
    assert decisions.task_at(7, 50, 70) == order[70]


def test_every_attempt_samples_with_its_own_seed() -> None:
    seeds = {decisions.episode_seed(1, f"g-e000-a{attempt}") for attempt in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert decisions.episode_seed(1, "x") == decisions.episode_seed(1, "x") != decisions.episode_seed(2, "x")
