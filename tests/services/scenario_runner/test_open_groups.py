"""However the last member of a group ends, the group ends in that transaction, and another may open."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, eval_spec, train_spec

from scenario_runner.domain.facts import GroupSettled
from scenario_runner.domain.plan import MAX_ATTEMPTS
from scenario_runner.domain.runs import Counts, EpisodeState, RunState
from scenario_runner.usecases.overdue import MARGIN_S
from upcycle.run_config import RunSpec

DEADLINE_S = 10
Ending = Callable[[PlannerHarness, int], Awaitable[None]]


def quick(spec: RunSpec) -> RunSpec:
    return replace(spec, episode_deadline_s=DEADLINE_S)


async def graded(planner: PlannerHarness, group: int) -> None:
    await planner.apply(*map(planner.graded, await left_in(planner, group)))


async def failed(planner: PlannerHarness, group: int) -> None:
    for _ in range(MAX_ATTEMPTS):
        await planner.apply(*map(planner.failed, await left_in(planner, group)))


async def timed_out(planner: PlannerHarness, group: int) -> None:
    for _ in range(MAX_ATTEMPTS):
        await one_timeout(planner, group)


async def one_timeout(planner: PlannerHarness, group: int) -> None:
    members = await left_in(planner, group)
    await planner.do(lambda unit: unit.note_opened(members))
    planner.now += timedelta(seconds=DEADLINE_S + MARGIN_S + 1)
    await planner.sweep()


async def failed_beside_a_graded_one(planner: PlannerHarness, group: int) -> None:
    first, *rest = await left_in(planner, group)
    await planner.apply(planner.graded(first))
    for _ in range(MAX_ATTEMPTS):
        await planner.apply(*map(planner.failed, rest))
        rest = [row for row in await left_in(planner, group) if row != first]


async def timed_out_beside_a_graded_one(planner: PlannerHarness, group: int) -> None:
    await planner.apply(planner.graded((await left_in(planner, group))[0]))
    await timed_out(planner, group)


async def graded_after_a_timeout(planner: PlannerHarness, group: int) -> None:
    members = await left_in(planner, group)
    await one_timeout(planner, group)
    await planner.apply(*map(planner.graded, members))


async def graded_after_its_last_timeout(planner: PlannerHarness, group: int) -> None:
    first, second = await left_in(planner, group)
    for attempt in range(MAX_ATTEMPTS):
        await planner.do(lambda unit, row=f"{first[:-1]}{attempt}": unit.note_opened([row]))  # type: ignore[misc]
        planner.now += timedelta(seconds=DEADLINE_S + MARGIN_S + 1)
        await planner.sweep()
    await planner.apply(planner.graded(f"{first[:-1]}{MAX_ATTEMPTS - 1}"), planner.graded(second))


async def left_in(planner: PlannerHarness, group: int) -> list[str]:
    rows = await planner.episodes()
    return [row.episode_id for row in rows if row.group_id == planner.group_id(group) and row.is_unsettled]


async def counts_of(planner: PlannerHarness) -> Counts:
    return await planner.do(lambda unit: unit.counts(planner.run_id))


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
async def test_an_evaluation_opens_another_group_when_the_last_member_ended(
    planner: PlannerHarness, end: End
) -> None:
    await planner.begin(quick(eval_spec()), num_tasks=4)  # three open groups
    await end.ending(planner, 0)
    counts = await counts_of(planner)
    assert (counts.groups_open, dict(counts.groups_by_outcome)) == (2, {end.of_group: 1})
    assert await planner.plan_all() == 1
    await check_conservation(planner)
    for group in (1, 2, 3):
        await end.ending(planner, group)
    run = await planner.run()
    assert run.state is (RunState.COMPLETED if end.of_group == "evaluated" else RunState.FAILED)
    assert dict((await counts_of(planner)).groups_by_outcome) == {end.of_group: 4}
    await check_conservation(planner)


@pytest.mark.parametrize("ending", [failed, timed_out], ids=lambda one: one.__name__)
async def test_a_training_run_whose_last_members_fail_closes_its_groups_and_gives_up(
    planner: PlannerHarness, ending: Ending
) -> None:
    await planner.begin(
        quick(train_spec(prompts=1)), num_tasks=3
    )  # two open groups, gives up after two groups
    await ending(planner, 0)
    counts = await counts_of(planner)
    assert (counts.groups_open, dict(counts.groups_by_outcome)) == (1, {"failed": 1})
    assert await planner.plan_all() == 1
    await ending(planner, 1)
    run = await planner.run()
    assert (run.state, run.ending) == (RunState.DRAINING, RunState.FAILED)
    assert "the last 2 groups had no graded episode: 4 of 4 failed" in run.failure
    await check_conservation(planner)


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
async def test_a_group_with_a_grade_stays_open_until_the_trainer_settles_it(
    planner: PlannerHarness, ending: Ending, outcome: str
) -> None:
    await planner.begin(quick(train_spec()), num_tasks=3)
    await ending(planner, 0)
    assert (await counts_of(planner)).groups_open == 4
    await planner.apply(planner.settled(planner.group_id(0), await left_in(planner, 0), outcome))
    named = "trained" if outcome == "trained" else "excluded(zero_spread)"
    assert dict((await counts_of(planner)).groups_by_outcome) == {named: 1}
    assert await planner.plan_all() == 1
    await check_conservation(planner)


async def test_a_group_that_its_trainer_settles_before_anything_was_graded_counts_as_failed(
    planner: PlannerHarness,
) -> None:
    """The planner may hear of the settlement first; a run of such groups is as hopeless as any other."""
    await planner.begin(train_spec(prompts=1), num_tasks=3)
    for group in range(2):
        short = GroupSettled(planner.group_id(group), planner.run_id, "excluded", "short_group", 0, ())
        await planner.apply(*map(planner.failed, planner.members(group)), short)
    run = await planner.run()
    assert run.ending is RunState.FAILED
    assert run.failure.startswith("the last 2 groups had no graded episode")
    await check_conservation(planner)


@pytest.mark.parametrize("spec", [eval_spec(), train_spec()], ids=["eval", "train"])
async def test_cancelling_closes_every_group(planner: PlannerHarness, spec: RunSpec) -> None:
    await planner.begin(quick(spec), num_tasks=4)
    await one_timeout(planner, 0)
    await planner.cancel()
    counts = await counts_of(planner)
    assert (counts.groups_open, counts.in_flight) == (0, 0)
    assert set(counts.groups_by_outcome) == {"cancelled(run_cancelled)"}
    assert (await planner.run()).state is RunState.CANCELLED
    await check_conservation(planner)


async def test_a_stopped_run_whose_members_fail_is_stopped_and_not_hopeless(planner: PlannerHarness) -> None:
    await planner.begin(quick(train_spec(prompts=1, staleness=2)), num_tasks=3)
    await planner.stop(is_delivered=False)
    for group in range(2):
        await planner.apply(*map(planner.failed, planner.members(group)))
    assert (await planner.run()).ending is RunState.COMPLETED
    await planner.stop()
    assert (await planner.run()).state is RunState.COMPLETED
    await check_conservation(planner)


async def test_everything_that_times_out_ends_an_evaluation(planner: PlannerHarness) -> None:
    await planner.begin(quick(eval_spec(group_size=1)), num_tasks=20)  # six open groups
    for _ in range(MAX_ATTEMPTS * 4):
        rows = [row.episode_id for row in await planner.episodes() if row.is_unsettled]
        await planner.do(lambda unit, rows=rows: unit.note_opened(rows))  # type: ignore[misc]
        planner.now += timedelta(seconds=DEADLINE_S + MARGIN_S + 1)
        await planner.sweep()
        await planner.plan_all()
    run, counts = await planner.run(), await counts_of(planner)
    assert (run.state, run.next_position, counts.groups_open) == (RunState.FAILED, 20, 0)
    assert run.failure.startswith("20 of 20 failed with timeout")


async def test_a_group_that_an_older_version_left_open_is_ended_by_the_sweep(planner: PlannerHarness) -> None:
    await planner.begin(quick(eval_spec()), num_tasks=4)
    await failed(planner, 0)
    reopen = sa.text("UPDATE task_group SET is_open = :yes, outcome = '' WHERE position = 0")
    await planner.database.run(lambda sql: sql.execute(reopen, {"yes": True}))
    assert await planner.plan_all() == 0
    await planner.sweep()
    assert dict((await counts_of(planner)).groups_by_outcome) == {"failed": 1}
    assert await planner.plan_all() == 1


async def test_an_episode_that_waits_for_the_grader_is_charged_no_attempt(planner: PlannerHarness) -> None:
    """The grader is away for three deadlines: what was played is graded then, and the run goes on."""
    await planner.begin(quick(train_spec(prompts=1, staleness=0)), num_tasks=3)
    members = planner.members(0)
    await planner.do(lambda unit: unit.note_opened(members))
    for _ in range(MAX_ATTEMPTS):
        planner.now += timedelta(seconds=DEADLINE_S + MARGIN_S + 1)
        await planner.sweep(at_grader=members)
    assert await left_in(planner, 0) == members
    await planner.apply(*map(planner.graded, members))
    assert (await counts_of(planner)).by_state == {EpisodeState.GRADED: 2}
    await check_conservation(planner)


async def test_what_the_grader_does_not_have_times_out_beside_what_it_has(planner: PlannerHarness) -> None:
    await planner.begin(quick(train_spec(prompts=1, staleness=0)), num_tasks=3)
    first, second = planner.members(0)
    await planner.do(lambda unit: unit.note_opened([first, second]))
    planner.now += timedelta(seconds=DEADLINE_S + MARGIN_S + 1)
    await planner.sweep(at_grader=[first])
    assert await left_in(planner, 0) == [first, f"{second[:-1]}1"]
    await check_conservation(planner)
