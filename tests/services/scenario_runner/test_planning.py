"""The planner's decisions on a real database, SQLite and Postgres."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.planning import (
    RULES,
    PlannerHarness,
    check_conservation,
    eval_spec,
    train_spec,
)

from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.domain import plan as decisions
from scenario_runner.domain.facts import Advanced, Fact
from scenario_runner.domain.runs import EpisodeState, RunState
from scenario_runner.usecases.overdue import MARGIN_S
from scenario_runner.usecases.planning import plan_more
from sql_store import Database


async def test_a_training_run_opens_as_many_groups_as_it_may_and_no_more(planner: PlannerHarness) -> None:
    await planner.submit(train_spec(), num_tasks=3)
    assert await planner.plan_all() == 4
    assert await planner.plan_all() == 0
    episodes = await planner.episodes()
    assert [row.episode_id for row in episodes] == [
        member for group in range(4) for member in planner.members(group)
    ]
    announced = await planner.announced()
    assert announced[f"episode.requested/{episodes[0].episode_id}"] == 1
    assert announced[f"episode.requested/{episodes[0].episode_id}/1"] == 1


async def test_two_planners_take_turns(planner: PlannerHarness, sql_url: str) -> None:
    await planner.submit(train_spec(), num_tasks=3)
    other = Database(sql_url)
    await other.start()
    plans = [planner.plan, SqlPlan(other, now=lambda: planner.now)]
    planned = await asyncio.gather(
        *(plan.transact(lambda unit: plan_more(unit, planner.run_id, RULES)) for plan in plans * 3)
    )
    await other.stop()
    assert sum(planned) == 4
    assert len(await planner.episodes()) == 8
    assert set((await planner.announced()).values()) == {1}


async def test_another_group_opens_only_when_one_is_settled(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    group, members = planner.group_id(0), planner.members(0)
    await planner.apply(*(planner.graded(member) for member in members))
    assert await planner.plan_all() == 0
    await planner.apply(planner.settled(group, members))
    assert await planner.plan_all() == 1
    states = {row.episode_id: (row.state, row.reason) for row in await planner.episodes()}
    assert states[members[0]] == (EpisodeState.TRAINED, "step 1")


async def test_an_evaluation_plays_every_task_in_a_bounded_window(planner: PlannerHarness) -> None:
    await planner.submit(eval_spec(), num_tasks=5)
    assert await planner.plan_all() == 3  # 6 episodes in flight / group of 2
    played: set[str] = set()
    while (await planner.run()).state is RunState.RUNNING:
        waiting = [row for row in await planner.episodes() if row.is_unsettled]
        assert len(waiting) <= RULES.eval_episodes_in_flight
        played.update(row.episode_id for row in waiting)
        await planner.apply(*(planner.graded(row.episode_id, 0.5) for row in waiting[:3]))
        await planner.plan_all()
    run = await planner.run()
    assert run.state is RunState.COMPLETED
    assert (run.num_graded, run.reward_mean, run.success_rate) == (10, 0.5, 0.0)
    assert len(played) == 10
    assert sorted({row.task_position for row in await planner.episodes()}) == [0, 1, 2, 3, 4]
    assert (await planner.announced())[f"run.finished/{planner.run_id}"] == 1


async def test_a_fact_delivered_twice_changes_nothing(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    group, (first, second) = planner.group_id(0), planner.members(0)
    facts: list[Fact] = [planner.graded(first), planner.failed(second), planner.graded(f"{group}-e001-a1")]
    facts += [planner.settled(group, [first, f"{group}-e001-a1"])]
    await planner.apply(*facts)
    before = await planner.episodes(), await planner.run(), await planner.announced()
    await planner.apply(*facts, *facts)
    # And contradictions that come late lose: the first terminal state stands.
    await planner.apply(planner.failed(first), planner.graded(second), planner.settled(group, [], "excluded"))
    assert (await planner.episodes(), await planner.run(), await planner.announced()) == before


async def test_a_settled_group_cancels_the_members_it_did_not_wait_for(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    group = planner.group_id(0)
    await planner.apply(
        planner.graded(f"{group}-e000-a0"), planner.settled(group, [f"{group}-e000-a0"], "excluded")
    )
    states = [(row.state.value, row.reason) for row in await planner.episodes() if row.group_id == group]
    assert states == [("excluded", "zero_spread"), ("cancelled", "group_settled")]
    assert (await planner.announced())[f"episode.cancelled/{group}-e001-a0"] == 1


async def test_the_last_step_ends_a_run_as_soon_as_the_rest_is_decided(planner: PlannerHarness) -> None:
    """The trainer may have trained what is graded: of its step one group was read."""
    await planner.begin(train_spec(steps=1), num_tasks=3)
    trained, members, graded = planner.group_id(0), planner.members(0), planner.members(1)[0]
    await planner.apply(
        *map(planner.graded, members), planner.graded(graded), planner.settled(trained, members)
    )
    await planner.apply(Advanced(planner.run_id, 1, 1))
    assert (await planner.run()).state is RunState.DRAINING
    await planner.apply(*await planner.settled_by_planner())
    run = await planner.run()
    assert (run.state, run.policy_version) == (RunState.COMPLETED, 1)
    counts = await planner.do(lambda unit: unit.counts(planner.run_id))
    # Two groups are open at once, as many as the one step takes.
    by_state = {state.value: count for state, count in counts.by_state.items()}
    assert by_state == {"trained": 2, "excluded": 1, "cancelled": 1}
    assert (await planner.announced())[f"run.finished/{planner.run_id}"] == 1
    assert await planner.plan_all() == 0


async def test_a_run_that_is_over_is_not_counted_again(planner: PlannerHarness) -> None:
    """Nor is one that ended under a planner which did not keep its counts counted wrong."""
    await planner.begin(eval_spec(group_size=1), num_tasks=2)
    await planner.apply(*(planner.graded(row.episode_id) for row in await planner.episodes()))
    assert (await planner.run()).state is RunState.COMPLETED

    async def by_state() -> dict[str, int]:
        counts = await planner.do(lambda unit: unit.counts(planner.run_id))
        return {state.value: count for state, count in counts.by_state.items()}

    assert await by_state() == {"evaluated": 2}
    tampered = sa.text("UPDATE episode SET state = 'failed' WHERE episode_id LIKE '%-g00001-%'")
    await planner.database.run(lambda sql: sql.execute(tampered))
    assert await by_state() == {"evaluated": 2}
    forgotten = sa.text("UPDATE run SET final_counts = NULL")
    await planner.database.run(lambda sql: sql.execute(forgotten))
    assert await by_state() == {"evaluated": 1, "failed": 1}


async def test_what_is_overdue_fails_by_name_and_what_was_lost_is_queued_again(
    planner: PlannerHarness,
) -> None:
    await planner.begin(replace(eval_spec(group_size=1), episode_deadline_s=10), num_tasks=2)
    opened, lost = [row.episode_id for row in await planner.episodes()]
    await planner.do(lambda unit: unit.note_opened([opened]))
    planner.now += timedelta(seconds=11)  # the word of its sampler comes first
    await planner.sweep(queue_is_idle=False)
    assert {row.state for row in await planner.episodes()} == {EpisodeState.PLANNED}
    planner.now += timedelta(seconds=MARGIN_S)
    await planner.sweep(queue_is_idle=False)
    announced = await planner.announced()
    (failed,) = [row for row in await planner.episodes() if row.episode_id == opened]
    assert (failed.state, failed.reason) == (EpisodeState.FAILED, "timeout")
    assert announced[f"episode.requested/{opened[:-1]}1"] == 1
    assert f"episode.requested/{lost}/2" not in announced  # it may still be in the queue
    await planner.sweep(queue_is_idle=True)
    assert (await planner.announced())[f"episode.requested/{lost}/2"] == 1
    await planner.sweep(queue_is_idle=True)
    assert f"episode.requested/{lost}/3" not in await planner.announced()


async def test_a_command_lost_in_a_queue_that_is_never_empty_is_sent_again(planner: PlannerHarness) -> None:
    await planner.begin(replace(eval_spec(group_size=1), episode_deadline_s=10), num_tasks=1)
    (lost,) = [row.episode_id for row in await planner.episodes()]
    sent_at = planner.now
    planner.now += timedelta(seconds=600)
    await planner.sweep(queued_since=sent_at)  # it may be this one
    await planner.sweep(queued_since=None)
    assert f"episode.requested/{lost}/2" not in await planner.announced()
    await planner.sweep(queued_since=sent_at + timedelta(seconds=120))
    assert (await planner.announced())[f"episode.requested/{lost}/2"] == 1
    await planner.sweep(queued_since=sent_at + timedelta(seconds=120))
    assert f"episode.requested/{lost}/3" not in await planner.announced()


async def test_a_run_that_ends_has_the_counts_that_its_episodes_say(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(group_size=1), num_tasks=2)
    first, last = [row.episode_id for row in await planner.episodes()]
    await planner.apply(planner.graded(first))
    right = await planner.run()
    for wrong in (
        "UPDATE run SET num_graded = 7, num_successes = 0, reward_sum = 9.5",
        "UPDATE task_group SET num_graded = 3",
    ):
        await planner.database.run(lambda sql, wrong=wrong: sql.execute(sa.text(wrong)))  # type: ignore[misc]
    await planner.apply(planner.graded(last))
    run = await planner.run()
    assert run.state is RunState.COMPLETED
    assert (run.num_graded, run.num_successes) == (2, 2 * right.num_successes)
    assert run.reward_sum == pytest.approx(2 * right.reward_sum)
    groups = sa.text("SELECT num_graded FROM task_group")
    assert await planner.database.run(lambda sql: list(sql.execute(groups).scalars())) == [1, 1]


async def test_a_grade_that_crossed_the_timeout_of_an_older_planner_stands(planner: PlannerHarness) -> None:
    await planner.begin(replace(train_spec(), episode_deadline_s=10), num_tasks=3)
    slow, other = planner.members(0)[0], planner.members(1)[0]
    await planner.do(lambda unit: unit.note_opened([slow, other]))
    planner.now += timedelta(seconds=11 + MARGIN_S)
    await planner.sweep()
    states = {row.episode_id: row.state for row in await planner.episodes()}
    assert states[slow] is EpisodeState.FAILED
    assert states[slow[:-1] + "1"] is EpisodeState.PLANNED
    # The grade was decided first, so the failure was dropped as its duplicate.
    await planner.apply(planner.graded(slow), planner.graded(slow))
    episodes = {row.episode_id: row for row in await planner.episodes()}
    assert (episodes[slow].state, episodes[slow].reason) == (EpisodeState.GRADED, "")
    assert episodes[slow[:-1] + "1"].reason == "graded_after_all"
    assert (await planner.run()).num_graded == 1
    # Too late for its group: the ledger still needs an event that the episode is not used.
    group = other.rsplit("-e", 1)[0]
    await planner.apply(planner.settled(group, [], "excluded"), planner.graded(other))
    assert (await planner.announced())[f"episode.cancelled/{other}"] == 1
    assert {row.episode_id: row.state for row in await planner.episodes()}[other] is EpisodeState.FAILED
    await check_conservation(planner)


def test_each_epoch_is_a_permutation_and_epochs_differ() -> None:
    order = [index for _, index in decisions.tasks_from(seed=7, num_tasks=50, position=0, count=150)]
    epochs = [order[start : start + 50] for start in (0, 50, 100)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    resumed = [index for _, index in decisions.tasks_from(seed=7, num_tasks=50, position=70, count=20)]
    assert resumed == order[70:90]


async def test_a_new_episode_is_announced_before_it_is_queued_and_with_one_message(
    planner: PlannerHarness,
) -> None:
    await planner.begin(eval_spec(), num_tasks=2)
    rows = await planner.database.run(
        lambda sql: list(sql.execute(sa.text("SELECT event_id, stream, payload FROM outbox ORDER BY id")))
    )
    first = planner.members(0)[0]
    ids = [row.event_id for row in rows]
    assert ids.index(f"episode.requested/{first}") + 1 == ids.index(f"episode.requested/{first}/1")
    fact, command = (row for row in rows if first in row.event_id)
    assert (fact.stream, command.stream, fact.payload) == ("EVENTS", "TASKS", command.payload)
    assert len(ids) == 2 * 4


async def test_a_new_episode_of_a_paused_run_is_announced_and_not_queued(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(), num_tasks=1)
    await planner.pause()
    await planner.apply(planner.failed(planner.members(0)[0]))
    again = f"{planner.group_id(0)}-e000-a1"
    assert {event_id for event_id in await planner.announced() if again in event_id} == {
        f"episode.requested/{again}"
    }
