"""However the last member of a group ends, the group ends in that transaction, and its slot is free."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.planning import (
    World,
    check_conservation,
    eval_spec,
    train_spec,
)

from scenario_runner.domain.facts import GroupSettled
from scenario_runner.domain.plan import MAX_ATTEMPTS
from scenario_runner.domain.runs import Counts, RunState
from upcycle.run_config import RunSpec

DEADLINE_S = 10
Ending = Callable[[World, int], Awaitable[None]]


def quick(spec: RunSpec) -> RunSpec:
    return replace(spec, episode_deadline_s=DEADLINE_S)


async def graded(world: World, group: int) -> None:
    await world.apply(*map(world.graded, await left_in(world, group)))


async def failed(world: World, group: int) -> None:
    for _ in range(MAX_ATTEMPTS):
        await world.apply(*map(world.failed, await left_in(world, group)))


async def timed_out(world: World, group: int) -> None:
    for _ in range(MAX_ATTEMPTS):
        await one_timeout(world, group)


async def one_timeout(world: World, group: int) -> None:
    members = await left_in(world, group)
    await world.do(lambda unit: unit.note_opened(members))
    world.now += timedelta(seconds=DEADLINE_S + 1)
    await world.sweep()


async def failed_beside_a_graded_one(world: World, group: int) -> None:
    first, *rest = await left_in(world, group)
    await world.apply(world.graded(first))
    for _ in range(MAX_ATTEMPTS):
        await world.apply(*map(world.failed, rest))
        rest = [row for row in await left_in(world, group) if row != first]


async def timed_out_beside_a_graded_one(world: World, group: int) -> None:
    await world.apply(world.graded((await left_in(world, group))[0]))
    await timed_out(world, group)


async def graded_after_a_timeout(world: World, group: int) -> None:
    members = await left_in(world, group)
    await one_timeout(world, group)
    await world.apply(*map(world.graded, members))


async def graded_after_its_last_timeout(world: World, group: int) -> None:
    first, second = await left_in(world, group)
    for attempt in range(MAX_ATTEMPTS):
        await world.do(lambda unit, row=f"{first[:-1]}{attempt}": unit.note_opened([row]))  # type: ignore[misc]
        world.now += timedelta(seconds=DEADLINE_S + 1)
        await world.sweep()
    await world.apply(world.graded(f"{first[:-1]}{MAX_ATTEMPTS - 1}"), world.graded(second))


async def left_in(world: World, group: int) -> list[str]:
    rows = await world.episodes()
    return [row.episode_id for row in rows if row.group_id == world.group_id(group) and row.is_unsettled]


async def counts_of(world: World) -> Counts:
    return await world.do(lambda unit: unit.counts(world.run_id))


@dataclass(frozen=True, slots=True)
class End:
    """of_group: what an evaluation calls the group then."""

    ending: Ending
    of_group: str


ENDS = [
    End(graded, "evaluated"),
    End(failed, "failed"),
    End(timed_out, "failed"),
    End(failed_beside_a_graded_one, "evaluated"),
    End(timed_out_beside_a_graded_one, "evaluated"),
    End(graded_after_a_timeout, "evaluated"),
    End(graded_after_its_last_timeout, "evaluated"),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.ending.__name__)
async def test_a_slot_of_an_evaluation_is_free_when_the_last_member_ended(world: World, end: End) -> None:
    await world.begin(quick(eval_spec()), num_tasks=4)  # three slots
    await end.ending(world, 0)
    counts = await counts_of(world)
    assert (counts.groups_open, dict(counts.groups_by_outcome)) == (2, {end.of_group: 1})
    assert await world.plan_all() == 1
    await check_conservation(world)
    for group in (1, 2, 3):
        await end.ending(world, group)
    run = await world.run()
    assert run.state is (RunState.COMPLETED if end.of_group == "evaluated" else RunState.FAILED)
    assert dict((await counts_of(world)).groups_by_outcome) == {end.of_group: 4}
    await check_conservation(world)


@pytest.mark.parametrize("ending", [failed, timed_out], ids=lambda one: one.__name__)
async def test_a_training_run_whose_last_members_fail_frees_its_slots_and_gives_up(
    world: World, ending: Ending
) -> None:
    await world.begin(quick(train_spec(prompts=1)), num_tasks=3)  # two slots, gives up after two groups
    await ending(world, 0)
    counts = await counts_of(world)
    assert (counts.groups_open, dict(counts.groups_by_outcome)) == (1, {"failed": 1})
    assert await world.plan_all() == 1
    await ending(world, 1)
    run = await world.run()
    assert (run.state, run.ending) == (RunState.DRAINING, RunState.FAILED)
    assert "the last 2 groups had no graded episode: 4 of 4 failed" in run.failure
    await check_conservation(world)


@pytest.mark.parametrize(
    "ending",
    [
        graded,
        failed_beside_a_graded_one,
        timed_out_beside_a_graded_one,
        graded_after_a_timeout,
        graded_after_its_last_timeout,
    ],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("outcome", ["trained", "excluded"])
async def test_a_group_with_a_grade_keeps_its_slot_until_the_trainer_settles_it(
    world: World, ending: Ending, outcome: str
) -> None:
    await world.begin(quick(train_spec()), num_tasks=3)
    await ending(world, 0)
    assert (await counts_of(world)).groups_open == 4
    await world.apply(world.settled(world.group_id(0), await left_in(world, 0), outcome))
    named = "trained" if outcome == "trained" else "excluded(zero_spread)"
    assert dict((await counts_of(world)).groups_by_outcome) == {named: 1}
    assert await world.plan_all() == 1
    await check_conservation(world)


async def test_a_group_that_its_trainer_settles_before_anything_was_graded_counts_as_failed(
    world: World,
) -> None:
    """The planner may hear of the settlement first; a run of such groups is as hopeless as any other."""
    await world.begin(train_spec(prompts=1), num_tasks=3)
    for group in range(2):
        short = GroupSettled(world.group_id(group), world.run_id, "excluded", "short_group", 0, ())
        await world.apply(*map(world.failed, world.members(group)), short)
    run = await world.run()
    assert run.ending is RunState.FAILED
    assert run.failure.startswith("the last 2 groups had no graded episode")
    await check_conservation(world)


@pytest.mark.parametrize("spec", [eval_spec(), train_spec()], ids=["eval", "train"])
async def test_cancelling_frees_every_slot(world: World, spec: RunSpec) -> None:
    await world.begin(quick(spec), num_tasks=4)
    await one_timeout(world, 0)
    await world.cancel()
    counts = await counts_of(world)
    assert (counts.groups_open, counts.in_flight) == (0, 0)
    assert set(counts.groups_by_outcome) == {"cancelled(run_cancelled)"}
    assert (await world.run()).state is RunState.CANCELLED
    await check_conservation(world)


async def test_a_stopped_run_whose_members_fail_is_stopped_and_not_hopeless(world: World) -> None:
    await world.begin(quick(train_spec(prompts=1, staleness=2)), num_tasks=3)
    await world.stop(is_delivered=False)
    for group in range(2):
        await world.apply(*map(world.failed, world.members(group)))
    assert (await world.run()).ending is RunState.COMPLETED
    await world.stop()
    assert (await world.run()).state is RunState.COMPLETED
    await check_conservation(world)


async def test_everything_that_times_out_ends_an_evaluation(world: World) -> None:
    await world.begin(quick(eval_spec(group_size=1)), num_tasks=20)  # six slots
    for _ in range(MAX_ATTEMPTS * 4):
        rows = [row.episode_id for row in await world.episodes() if row.is_unsettled]
        await world.do(lambda unit, rows=rows: unit.note_opened(rows))  # type: ignore[misc]
        world.now += timedelta(seconds=DEADLINE_S + 1)
        await world.sweep()
        await world.plan_all()
    run, counts = await world.run(), await counts_of(world)
    assert (run.state, run.next_position, counts.groups_open) == (RunState.FAILED, 20, 0)
    assert run.failure.startswith("20 of 20 failed with timeout")


async def test_a_group_that_an_older_version_left_open_is_ended_by_the_sweep(world: World) -> None:
    await world.begin(quick(eval_spec()), num_tasks=4)
    await failed(world, 0)
    reopen = sa.text("UPDATE task_group SET is_open = :yes, outcome = '' WHERE position = 0")
    await world.database.run(lambda sql: sql.execute(reopen, {"yes": True}))
    assert await world.plan_all() == 0
    await world.sweep()
    assert dict((await counts_of(world)).groups_by_outcome) == {"failed": 1}
    assert await world.plan_all() == 1
