"""Other tasks under a known name: who plays which revision."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import grpc
import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.planning import RULES, PlannerHarness, open_database
from tests.services.scenario_runner.planning import eval_spec as eval_spec_of
from tests.services.scenario_runner.planning import train_spec as train_spec_of
from tests.services.scenario_runner.support import (
    arith,
    finished,
    play_to_grade,
    refusal,
    register,
    run_spec,
    sampling,
    submit,
)
from tests.services.scenario_runner.test_splits import add, digest, requested, taskset

from episodes import Split
from scenario_runner.adapters.planned_episodes import SqlPlannedEpisodes
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.domain.runs import AlreadyTaken, EpisodeState, RunRecord, RunState
from scenario_runner.domain.tasksets import RegisteredTaskset
from scenario_runner.usecases.planning import plan_more
from scenario_runner.usecases.revisions import store
from scenario_runner.usecases.submitting import Runs
from service_kit.errors import InvalidRequest
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2
from upcycle.run_config import RunSpec

TRAIN = Split.TRAIN


async def begin(planner: PlannerHarness, spec: RunSpec) -> RunRecord:
    """Submit over what is registered, without planning."""

    def work(unit: PlanUnit) -> RunRecord:
        found = unit.taskset(spec.taskset)
        assert found is not None
        run = RunRecord(
            planner.run_id,
            "r",
            spec,
            found.split,
            found.digest,
            RunState.RUNNING,
            planner.now,
            found.num_tasks,
            taskset=found.key,
            taskset_revision=found.revision,
        )
        unit.add_run(run)
        return run

    return await planner.do(work)


async def plan(planner: PlannerHarness) -> int:
    return await planner.do(lambda unit: plan_more(unit, planner.run_id, RULES))


async def played(planner: PlannerHarness) -> Counter[str]:
    """Digests of the tasks of all attempts, as their numbers."""
    return Counter(one.episode.task_digest.lstrip("0") for one in await requested(planner))


async def test_other_tasks_are_a_new_revision_and_the_same_ones_are_none(planner: PlannerHarness) -> None:
    first = await add(planner, "ts", TRAIN, 1, 2)
    second = await add(planner, "ts", TRAIN, 1, 2, 3)
    again = await planner.do(lambda unit: store(unit, taskset("ts", TRAIN, 1, 2, 3)))
    back = await add(planner, "ts", TRAIN, 1, 2)
    assert [(one.revision, one.key) for one in (first, second, back)] == [(1, "ts"), (2, "ts@2"), (3, "ts@3")]
    assert (again[0].revision, again[1]) == (2, False)
    for name, revision, num_tasks in (("ts", 3, 2), ("ts@1", 1, 2), ("ts@2", 2, 3), ("ts@3", 3, 2)):
        found = await read(planner, name)
        assert (found.name, found.revision, found.num_tasks) == ("ts", revision, num_tasks), name
    for unknown in ("ts@4", "ts@0", "ts@02", "ts@", "@2", "ts@2@2", "ts@99999999999999999999"):
        assert await planner.do(lambda unit, name=unknown: unit.taskset(name)) is None, unknown  # type: ignore[misc]
    listed = await planner.do(lambda unit: unit.tasksets())
    assert [(one.name, one.revision) for one in listed] == [("ts", 3)]


async def read(planner: PlannerHarness, name: str) -> RegisteredTaskset:
    found = await planner.do(lambda unit: unit.taskset(name))
    assert found is not None
    return found


async def test_split_and_environment_belong_to_the_name(planner: PlannerHarness) -> None:
    await add(planner, "ts", TRAIN, 1)
    for other in (
        taskset("ts", Split.HELD_OUT, 2),
        taskset("ts", Split.UNASSIGNED, 1),
        replace(taskset("ts", TRAIN, 2), source=PythonEnvironment("another", "/e.py")),
    ):
        with pytest.raises(AlreadyTaken, match="a new revision keeps both: choose another name"):
            await planner.do(lambda unit, other=other: store(unit, other))  # type: ignore[misc]
    moved = replace(taskset("ts", TRAIN, 1), source=PythonEnvironment("e", "/moved.py"))
    assert (await planner.do(lambda unit: store(unit, moved)))[1] is False
    assert (await read(planner, "ts")).source == moved.source


async def test_a_name_of_before_that_looks_like_a_revision_is_left_alone(planner: PlannerHarness) -> None:
    old = taskset("ts@2", TRAIN, 7)
    await planner.do(lambda unit: unit.add_taskset(old))
    await add(planner, "ts", TRAIN, 1)
    second = await add(planner, "ts", TRAIN, 2)
    assert second.key == "ts@3"
    assert (await read(planner, "ts@2")).name == "ts@2"
    long = "n" * 199
    await add(planner, long, TRAIN, 1)
    with pytest.raises(InvalidRequest, match="choose a shorter name"):
        await add(planner, long, TRAIN, 2)


async def test_an_evaluation_plays_what_it_was_submitted_with(planner: PlannerHarness) -> None:
    await add(planner, "ts", TRAIN, 1, 2, 3, 4)
    await begin(planner, eval_spec_of(group_size=3))
    await plan(planner)  # two groups of four fit
    await add(planner, "ts", TRAIN, 8, 9)
    before = await requested(planner)
    await planner.apply(planner.failed(before[0].episode.episode_id))
    refill = [one for one in await requested(planner) if one.attempt == 1]
    assert [one.episode.task_digest for one in refill] == [before[0].episode.task_digest]
    while await plan(planner) or (waiting := await planned(planner)):
        await planner.apply(*[planner.graded(one) for one in await planned(planner)])
    assert not waiting
    assert await played(planner) == Counter(
        {str(n): 3 for n in range(1, 5)} | {refill[0].episode.task_digest.lstrip("0"): 4}
    )
    done = await planner.do(lambda unit: unit.run(planner.run_id))
    assert done is not None
    assert (done.state, done.taskset, done.taskset_revision) == (RunState.COMPLETED, "ts", 1)


async def planned(planner: PlannerHarness) -> list[str]:
    return [row.episode_id for row in await planner.episodes() if row.state is EpisodeState.PLANNED]


async def test_a_standing_run_takes_the_newest_revision_for_its_next_groups(planner: PlannerHarness) -> None:
    await add(planner, "ts", TRAIN, 1, 2)
    spec = train_spec_of(group_size=2, prompts=2, staleness=0, steps=0)
    run = await begin(planner, spec)
    assert await plan(planner) == 2
    assert await played(planner) == Counter({"1": 2, "2": 2})
    revised = await add(planner, "ts", TRAIN, 11, 12, 13)
    assert (await planner.run()).taskset == "ts"  # nothing happens before it plans
    first = sorted(one.episode.episode_id for one in await requested(planner))
    await planner.apply(
        planner.failed(first[0])
    )  # of a group of the first revision: played again with its task
    assert sum((await played(planner)).values()) == 5
    assert set(await played(planner)) == {"1", "2"}
    for group in range(2):
        await planner.apply(planner.settled(planner.group_id(group), planner.members(group), "excluded"))
    assert await plan(planner) == 2
    taken = await planner.run()
    assert (taken.taskset, taken.taskset_revision, taken.num_tasks) == ("ts@2", 2, 3)
    assert (taken.taskset_digest, taken.taskset_name) == (revised.digest, "ts")
    assert taken.next_position == run.next_position + 4
    new = await played(planner) - Counter({"1": 3, "2": 3})
    assert set(new) < {"11", "12", "13"}
    assert set(new.values()) == {2}
    # Everything that is read of it later knows which revision a group is of.
    rows = await Runs(planner.plan, wake=lambda: None).results(planner.run_id)
    assert {(row.taskset, task.digest.lstrip("0")) for row, task in rows} == {
        ("ts", "1"),
        ("ts", "2"),
        *(("ts@2", one) for one in new),
    }


async def test_what_was_dispatched_again_and_what_is_opened_is_the_task_of_its_revision(
    planner: PlannerHarness,
) -> None:
    await add(planner, "ts", TRAIN, 1, 2)
    await begin(planner, train_spec_of(group_size=2, prompts=2, staleness=0, steps=0))
    await plan(planner)
    asked = {one.episode.episode_id: one.episode.task_digest for one in await requested(planner)}
    moved = replace(taskset("ts", TRAIN, 11, 12), source=PythonEnvironment("e", "/new.py"))
    await planner.do(lambda unit: store(unit, moved))
    planner.now += timedelta(seconds=1000)
    await planner.sweep(queue_is_idle=True)
    announced = await planner.announced()
    assert sum(key.endswith("/2") for key in announced) == 4
    assert {one.episode.episode_id: one.episode.task_digest for one in await requested(planner)} == asked
    book = SqlPlannedEpisodes(planner.database, now=lambda: planner.now)
    for episode_id in asked:
        assert (await book.to_play(episode_id)).source == PythonEnvironment("e", "/e.py")
    for group in range(2):
        await planner.apply(planner.settled(planner.group_id(group), planner.members(group), "excluded"))
    await plan(planner)
    opened = await book.to_play(f"{planner.group_id(2)}-e000-a0")
    assert opened.source == PythonEnvironment("e", "/new.py")


@pytest.mark.parametrize(
    ("taskset_name", "steps"), [("ts", 5), ("ts@1", 0), ("ts@1", 5)], ids=["limited", "pinned", "both"]
)
async def test_other_training_runs_stay_with_their_revision(
    planner: PlannerHarness, taskset_name: str, steps: int
) -> None:
    await add(planner, "ts", TRAIN, 1, 2)
    spec = replace(train_spec_of(prompts=1, staleness=0, steps=steps), taskset=taskset_name)
    await begin(planner, spec)
    await plan(planner)
    await add(planner, "ts", TRAIN, 11, 12)
    await planner.apply(planner.settled(planner.group_id(0), planner.members(0), "excluded"))
    assert await plan(planner) == 1
    assert set(await played(planner)) == {"1", "2"}
    assert (await planner.run()).taskset == "ts"


async def test_a_revision_claims_its_tasks_too(planner: PlannerHarness) -> None:
    await add(planner, "ts", TRAIN, 1)
    await add(planner, "judge", Split.HELD_OUT, 5)
    with pytest.raises(Exception, match="is held out already: taskset judge"):
        await add(planner, "ts", TRAIN, 1, 5)
    assert (await read(planner, "ts")).revision == 1
    await add(planner, "ts", TRAIN, 2)
    # What a revision left out stays on its side: groups of it may be under way, and it may have trained.
    with pytest.raises(Exception, match="is training data already: taskset ts"):
        await add(planner, "judge", Split.HELD_OUT, 1)
    found = await planner.do(lambda unit: unit.splits([digest(1), digest(2), digest(5)]))
    assert list(found.values()) == [TRAIN, TRAIN, Split.HELD_OUT]


@pytest.fixture
async def rival(sql_url: str, planner: PlannerHarness) -> AsyncIterator[SqlPlan]:
    """A second planner on the same database; SQLite belongs to one process."""
    if not sql_url.startswith("postgresql"):
        pytest.skip("SQLite has one writer")
    database = await open_database(sql_url)
    yield SqlPlan(database, now=lambda: planner.now)
    await database.stop()


async def test_two_planners_number_revisions_one_after_the_other(
    planner: PlannerHarness, rival: SqlPlan
) -> None:
    async def revise(plan: SqlPlan, number: int) -> int:
        return (await plan.transact(lambda unit: store(unit, taskset("ts", TRAIN, number))))[0].revision

    made = await asyncio.gather(*(revise((planner.plan, rival)[n % 2], n) for n in range(8)))
    assert sorted(made) == list(range(1, 9))


async def test_revisions_over_the_wire(runner: Runner) -> None:
    one = await register(runner, arith(2))
    two = await register(runner, arith(3))
    assert (one.revision, one.created, two.revision, two.created, two.num_tasks) == (1, True, 2, True, 3)
    again = await register(runner, arith(3))
    assert (again.revision, again.created, again.digest) == (2, False, two.digest)
    for name, revision, num_tasks in (("sums", 2, 3), ("sums@1", 1, 2), ("sums@2", 2, 3)):
        found = await runner.tasksets.GetTaskset(service_pb2.GetTasksetRequest(name=name))
        taskset = found.taskset
        assert (taskset.name, taskset.revision, len(taskset.tasks)) == ("sums", revision, num_tasks)
    missing = await refusal(runner.tasksets.GetTaskset(service_pb2.GetTasksetRequest(name="sums@3")))
    assert missing.code() is grpc.StatusCode.NOT_FOUND
    listed = (await runner.tasksets.ListTasksets(service_pb2.ListTasksetsRequest())).tasksets
    assert [(entry.name, entry.revision) for entry in listed] == [("sums", 2)]
    old = await submit(runner, run_spec(taskset="sums@1", group_size=1), "old")
    assert (old.taskset_revision, old.taskset_digest, old.spec.taskset) == (1, one.digest, "sums@1")
    async with sampling(runner, lambda request: play_to_grade(runner, request)):
        done = await finished(runner, old.run_id)
    assert sorted(result.task_slug for result in done.results) == ["t0", "t1"]
    new = await submit(runner, run_spec(group_size=1), "new")
    assert (new.taskset_revision, new.taskset_digest) == (2, two.digest)
    error = await refusal(register(runner, arith(2, split=common_pb2.SPLIT_UNASSIGNED)))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
