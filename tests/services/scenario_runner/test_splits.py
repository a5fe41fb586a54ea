"""Which side a task is on: whichever claims it first decides, and the other side refuses it from then on."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import sqlalchemy as sa
from google.protobuf import json_format
from tests.facts import newest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.planning import PlannerHarness, eval_spec, open_database
from tests.services.scenario_runner.support import arith, refusal, register, run_spec, submit

from episodes import Split
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.domain.facts import Failed
from scenario_runner.domain.runs import Refused
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.usecases.revisions import store
from scenario_runner.usecases.task_claims import ClaimTasks
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import events_pb2, service_pb2
from upcycle.tasks import taskset_digest

TRAIN, HELD_OUT = Split.TRAIN, Split.HELD_OUT
UNASSIGNED = Split.UNASSIGNED


def digest(number: int) -> str:
    return f"{number:064d}"


def tasks_of(*numbers: int, slug: str = "t") -> tuple[RunnableTask, ...]:
    return tuple(
        RunnableTask(f"{slug}{at}-{number}", "s", "{}", "default", digest(number))
        for at, number in enumerate(numbers)
    )


def taskset(name: str, split: Split, *numbers: int) -> RegisteredTaskset:
    tasks = tasks_of(*numbers)
    content = taskset_digest(split.value, (task.digest for task in tasks))
    return RegisteredTaskset(name, content, split, PythonEnvironment("e", "/e.py"), len(tasks), tasks)


async def add(planner: PlannerHarness, name: str, split: Split, *numbers: int) -> RegisteredTaskset:
    made = taskset(name, split, *numbers)
    return (await planner.do(lambda unit: store(unit, made)))[0]


async def splits(planner: PlannerHarness, *numbers: int) -> list[Split]:
    found = await planner.do(lambda unit: unit.splits([digest(number) for number in numbers]))
    return [found[digest(number)] for number in numbers]


async def claim(planner: PlannerHarness, *numbers: int) -> int:
    return await ClaimTasks(planner.plan)([digest(number) for number in numbers], "tests")


@pytest.mark.parametrize(("first", "second"), [(TRAIN, HELD_OUT), (HELD_OUT, TRAIN)])
async def test_a_task_is_on_the_side_that_claimed_it_first(
    planner: PlannerHarness, first: Split, second: Split
) -> None:
    await add(planner, "one", first, 1, 2)
    with pytest.raises(Refused, match=r"task 't1-2' of taskset 'two'.*taskset one claimed it.*leave it out"):
        await add(planner, "two", second, 3, 2)
    # Refused as a whole: nothing of it is there, and its other task is on no side.
    assert await splits(planner, 1, 2, 3) == [first, first, UNASSIGNED]
    assert await planner.do(lambda unit: unit.taskset("two")) is None
    await add(planner, "two", second, 3)
    await add(planner, "three", first, 1, 4)
    assert await splits(planner, 3, 4) == [second, first]


async def test_a_taskset_that_holds_a_task_twice_claims_it_once(planner: PlannerHarness) -> None:
    await add(planner, "twice", TRAIN, 5, 5, 6)
    with pytest.raises(Refused, match="'t0-5'"):
        await add(planner, "other", HELD_OUT, 5)
    with pytest.raises(Refused, match="training data already"):
        await add(planner, "other", HELD_OUT, 5, 5)
    assert await splits(planner, 5, 6) == [TRAIN, TRAIN]


async def test_unassigned_claims_nothing_until_a_taskset_decides(planner: PlannerHarness) -> None:
    await add(planner, "loose", UNASSIGNED, 1, 2)
    assert await splits(planner, 1, 2) == [UNASSIGNED, UNASSIGNED]
    await add(planner, "named", TRAIN, 1)
    with pytest.raises(Refused, match=r"t0-1.*is training data already: taskset named"):
        await add(planner, "judge", HELD_OUT, 1, 2)
    await add(planner, "judge", HELD_OUT, 2)
    await add(planner, "loose too", UNASSIGNED, 1, 2, 3)  # may be evaluated in any company
    assert await splits(planner, 1, 2, 3) == [TRAIN, HELD_OUT, UNASSIGNED]


async def test_what_entered_a_gradient_can_only_be_claimed_for_training(planner: PlannerHarness) -> None:
    await add(planner, "judge", HELD_OUT, 9)
    assert await claim(planner, 1, 2) == 2
    assert await claim(planner, 2, 3) == 1
    with pytest.raises(Refused, match="gradient of tests claimed it"):
        await add(planner, "late judge", HELD_OUT, 2)
    await add(planner, "named", TRAIN, 1, 2, 3)
    assert await claim(planner, 1, 2, 3) == 0
    with pytest.raises(Refused, match=r"task 000000000000… is held out: taskset judge claimed it"):
        await claim(planner, 4, 9)
    assert await splits(planner, 1, 3, 4, 9) == [TRAIN, TRAIN, UNASSIGNED, HELD_OUT]
    assert await claim(planner) == 0


async def test_episodes_are_asked_for_with_the_side_of_their_task(planner: PlannerHarness) -> None:
    await planner.submit(
        eval_spec(1), 3
    )  # tasks 0, 1, 2 of taskset "ts", which says train and claimed nothing
    numbers = {f"t{n}": f"{n:064d}" for n in range(3)}
    await planner.do(lambda unit: unit.claim([numbers["t0"]], HELD_OUT, "taskset a"))
    await planner.do(lambda unit: unit.claim([numbers["t1"]], TRAIN, "taskset b"))
    await planner.plan_all()
    wanted = {
        "t0": common_pb2.SPLIT_HELD_OUT,
        "t1": common_pb2.SPLIT_TRAIN,
        "t2": common_pb2.SPLIT_UNASSIGNED,
    }
    requests = await requested(planner)
    assert {one.episode.task_slug: one.episode.split for one in requests} == wanted
    # What is played again is asked for with the side of then.
    await planner.do(lambda unit: unit.claim([numbers["t2"]], TRAIN, "taskset c"))
    by_slug = {one.episode.task_slug: one.episode.episode_id for one in requests}
    await planner.apply(Failed(by_slug["t2"], planner.run_id, "engine_error", ""))
    again = [one for one in await requested(planner) if one.attempt == 1]
    assert [(one.episode.task_slug, one.episode.split) for one in again] == [("t2", common_pb2.SPLIT_TRAIN)]


async def requested(planner: PlannerHarness) -> list[events_pb2.EpisodeRequested]:
    """Facts episode.requested, in order."""
    wanted = "SELECT payload FROM outbox WHERE event_id LIKE 'episode.requested/%' ORDER BY id"
    rows = await planner.database.run(lambda sql: list(sql.execute(sa.text(wanted)).scalars()))
    found = {}
    for row in rows:
        one = json_format.Parse(row, events_pb2.EpisodeRequested())
        found[one.episode.episode_id] = one
    return list(found.values())


@pytest.fixture
async def rival(sql_url: str, planner: PlannerHarness) -> AsyncIterator[SqlPlan]:
    """A second planner on the same database; SQLite belongs to one process."""
    if not sql_url.startswith("postgresql"):
        pytest.skip("SQLite has one writer")
    database = await open_database(sql_url)
    yield SqlPlan(database, now=lambda: planner.now)
    await database.stop()


async def _waits_for_a_lock(planner: PlannerHarness) -> None:
    """Until a transaction on this Postgres database waits for another one."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(60):
        while not await planner.database.run(lambda sql: sql.execute(waiting).scalar_one()):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("winner_commits", [True, False])
async def test_two_planners_never_both_accept_a_task(
    planner: PlannerHarness, rival: SqlPlan, winner_commits: bool
) -> None:
    inserted, go_on = threading.Event(), threading.Event()

    def slow(unit: Any) -> None:
        store(unit, taskset("one", TRAIN, 1, 2))
        inserted.set()
        assert go_on.wait(60)
        if not winner_commits:
            raise RuntimeError("changed its mind")

    first = asyncio.create_task(planner.plan.transact(slow, turn="taskset one"))
    assert await asyncio.to_thread(inserted.wait, 60)
    second = asyncio.create_task(
        rival.transact(lambda unit: store(unit, taskset("two", HELD_OUT, 2, 3)), turn="taskset two")
    )
    await _waits_for_a_lock(planner)  # of the transaction that inserted the same digest
    assert not second.done()
    go_on.set()
    if winner_commits:
        await first
        with pytest.raises(Refused, match="taskset one claimed it"):
            await second
        assert await splits(planner, 1, 2, 3) == [TRAIN, TRAIN, UNASSIGNED]
    else:
        with pytest.raises(RuntimeError):
            await first
        assert (await second)[1]
        assert await splits(planner, 1, 2, 3) == [UNASSIGNED, HELD_OUT, HELD_OUT]


async def test_more_tasks_are_claimed_than_one_statement_takes(planner: PlannerHarness) -> None:
    """10,000 digests go into one statement: these need three."""
    many = taskset("many", TRAIN, *range(20_001))
    await planner.do(lambda unit: store(unit, many))
    with pytest.raises(Refused, match="'t1-20000'"):
        await add(planner, "judge", HELD_OUT, 100_000, 20_000)


async def test_claiming_over_the_wire(runner: Runner) -> None:
    held = await register(runner, arith(1, "held", common_pb2.SPLIT_HELD_OUT, first=7))
    assert held.created
    stored = (await runner.tasksets.GetTaskset(service_pb2.GetTasksetRequest(name="held"))).taskset
    assert (stored.split, stored.revision) == (common_pb2.SPLIT_HELD_OUT, 1)
    secret = stored.tasks[0].digest

    async def ask(digests: list[str], by: str = "a test") -> service_pb2.ClaimTasksResponse:
        request = service_pb2.ClaimTasksRequest(task_digests=digests, claimed_by=by)
        response: service_pb2.ClaimTasksResponse = await runner.tasksets.ClaimTasks(request)
        return response

    assert (await ask([digest(1), digest(2), digest(1)])).claimed == 2
    error = await refusal(ask([digest(3), secret]))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"task {secret[:12]}… is held out: taskset held claimed it" in (error.details() or "")
    assert (await ask([digest(3)])).claimed == 1  # the refused call claimed nothing
    bad: list[tuple[list[str], str, str]] = [
        ([digest(n) for n in range(10_001)], "x", "10001 entries, limit 10000"),
        (["f" * 63], "x", "64 hex digits"),
        (["F" * 64], "x", "64 hex digits"),
        (["g" * 64], "x", "64 hex digits"),
        ([digest(1) + "\n"], "x", "64 hex digits"),
        ([""], "x", "64 hex digits"),
        ([digest(1)], "", "claimed_by"),
        ([digest(1)], " ", "claimed_by"),
        ([digest(1)], "a\nb", "claimed_by"),
        ([digest(1)], "x" * 201, "claimed_by"),
    ]
    for digests, by, says in bad:
        error = await refusal(ask(digests, by))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, (says, error)
        assert says in (error.details() or "")


async def test_an_unassigned_taskset_is_evaluated_and_says_so(runner: Runner) -> None:
    await register(runner, arith(2, "loose", common_pb2.SPLIT_UNASSIGNED))
    run = await submit(runner, run_spec(taskset="loose", group_size=1))
    assert run.taskset_revision == 1
    fact = None
    async with asyncio.timeout(60):
        while fact is None:
            fact = await newest(runner.bus, events_pb2.EpisodeRequested, model="incident")
    assert fact.message.episode.split == common_pb2.SPLIT_UNASSIGNED
