"""Which side a task is on: whichever claims it first decides, and the other side refuses it from then on."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from google.protobuf import json_format
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.planning import START, World, eval_spec, open_database
from tests.services.scenario_runner.support import arith, refusal, register, run_spec, submit

from episodes import Split
from scenario_runner.adapters import migrations
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.adapters.tables import CLAIM
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.domain.facts import Failed
from scenario_runner.domain.runs import Refused
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.usecases.revisions import store
from scenario_runner.usecases.task_claims import ClaimTasks
from scenario_runner.wire import runs as wire
from sql_store import Database, migrate
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


async def add(world: World, name: str, split: Split, *numbers: int) -> RegisteredTaskset:
    made = taskset(name, split, *numbers)
    return (await world.do(lambda unit: store(unit, made)))[0]


async def splits(world: World, *numbers: int) -> list[Split]:
    found = await world.do(lambda unit: unit.splits([digest(number) for number in numbers]))
    return [found[digest(number)] for number in numbers]


async def claim(world: World, *numbers: int) -> int:
    return await ClaimTasks(world.plan)([digest(number) for number in numbers], "tests")


@pytest.mark.parametrize(("first", "second"), [(TRAIN, HELD_OUT), (HELD_OUT, TRAIN)])
async def test_a_task_is_on_the_side_that_claimed_it_first(world: World, first: Split, second: Split) -> None:
    await add(world, "one", first, 1, 2)
    with pytest.raises(Refused, match=r"task 't1-2' of taskset 'two'.*taskset one claimed it.*leave it out"):
        await add(world, "two", second, 3, 2)
    # Refused as a whole: nothing of it is there, and its other task is on no side.
    assert await splits(world, 1, 2, 3) == [first, first, UNASSIGNED]
    assert await world.do(lambda unit: unit.taskset("two")) is None
    await add(world, "two", second, 3)
    await add(world, "three", first, 1, 4)
    assert await splits(world, 3, 4) == [second, first]


async def test_a_taskset_that_holds_a_task_twice_claims_it_once(world: World) -> None:
    await add(world, "twice", TRAIN, 5, 5, 6)
    with pytest.raises(Refused, match="'t0-5'"):
        await add(world, "other", HELD_OUT, 5)
    with pytest.raises(Refused, match="training data already"):
        await add(world, "other", HELD_OUT, 5, 5)
    assert await splits(world, 5, 6) == [TRAIN, TRAIN]


async def test_unassigned_claims_nothing_until_a_taskset_decides(world: World) -> None:
    await add(world, "loose", UNASSIGNED, 1, 2)
    assert await splits(world, 1, 2) == [UNASSIGNED, UNASSIGNED]
    await add(world, "named", TRAIN, 1)
    with pytest.raises(Refused, match=r"t0-1.*is training data already: taskset named"):
        await add(world, "judge", HELD_OUT, 1, 2)
    await add(world, "judge", HELD_OUT, 2)
    await add(world, "loose too", UNASSIGNED, 1, 2, 3)  # may be evaluated in any company
    assert await splits(world, 1, 2, 3) == [TRAIN, HELD_OUT, UNASSIGNED]


async def test_what_entered_a_gradient_can_only_be_claimed_for_training(world: World) -> None:
    await add(world, "judge", HELD_OUT, 9)
    assert await claim(world, 1, 2) == 2
    assert await claim(world, 2, 3) == 1
    with pytest.raises(Refused, match="gradient of tests claimed it"):
        await add(world, "late judge", HELD_OUT, 2)
    await add(world, "named", TRAIN, 1, 2, 3)
    assert await claim(world, 1, 2, 3) == 0
    with pytest.raises(Refused, match=r"task 000000000000… is held out: taskset judge claimed it"):
        await claim(world, 4, 9)
    assert await splits(world, 1, 3, 4, 9) == [TRAIN, TRAIN, UNASSIGNED, HELD_OUT]
    assert await claim(world) == 0


async def test_episodes_are_asked_for_with_the_side_of_their_task(world: World) -> None:
    await world.submit(eval_spec(1), 3)  # tasks 0, 1, 2 of taskset "ts", which says train and claimed nothing
    numbers = {f"t{n}": f"{n:064d}" for n in range(3)}
    await world.do(lambda unit: unit.claim([numbers["t0"]], HELD_OUT, "taskset a"))
    await world.do(lambda unit: unit.claim([numbers["t1"]], TRAIN, "taskset b"))
    await world.plan_all()
    wanted = {
        "t0": common_pb2.SPLIT_HELD_OUT,
        "t1": common_pb2.SPLIT_TRAIN,
        "t2": common_pb2.SPLIT_UNASSIGNED,
    }
    requests = await requested(world)
    assert {one.task_slug: one.split for one in requests} == wanted
    # What is played again is asked for with the side of then.
    await world.do(lambda unit: unit.claim([numbers["t2"]], TRAIN, "taskset c"))
    by_slug = {one.task_slug: one.episode_id for one in requests}
    await world.apply(Failed(by_slug["t2"], world.run_id, "engine_error", ""))
    again = [one for one in await requested(world) if one.attempt == 1]
    assert [(one.task_slug, one.split) for one in again] == [("t2", common_pb2.SPLIT_TRAIN)]


async def requested(world: World) -> list[events_pb2.EpisodeRequested]:
    """Facts episode.requested, in order."""
    wanted = "SELECT payload FROM outbox WHERE event_id LIKE 'episode.requested/%' ORDER BY id"
    rows = await world.database.run(lambda sql: list(sql.execute(sa.text(wanted)).scalars()))
    found = {}
    for row in rows:
        one = json_format.Parse(row, events_pb2.EpisodeRequested())
        found[one.episode_id] = one
    return list(found.values())


@pytest.fixture
async def rival(sql_url: str, world: World) -> AsyncIterator[SqlPlan]:
    """A second planner on the same database; SQLite belongs to one process."""
    if not sql_url.startswith("postgresql"):
        pytest.skip("SQLite has one writer")
    database = await open_database(sql_url)
    yield SqlPlan(database, now=lambda: world.now)
    await database.stop()


async def _waits_for_a_lock(world: World) -> None:
    """Until a transaction on this Postgres database waits for another one."""
    waiting = sa.text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(20):
        while not await world.database.run(lambda sql: sql.execute(waiting).scalar_one()):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("winner_commits", [True, False])
async def test_two_planners_never_both_accept_a_task(
    world: World, rival: SqlPlan, winner_commits: bool
) -> None:
    inserted, go_on = threading.Event(), threading.Event()

    def slow(unit: Any) -> None:
        store(unit, taskset("one", TRAIN, 1, 2))
        inserted.set()
        assert go_on.wait(20)
        if not winner_commits:
            raise RuntimeError("changed its mind")

    first = asyncio.create_task(world.do(slow))
    assert await asyncio.to_thread(inserted.wait, 20)
    second = asyncio.create_task(rival.transact(lambda unit: store(unit, taskset("two", HELD_OUT, 2, 3))))
    await _waits_for_a_lock(world)  # of the transaction that inserted the same digest
    assert not second.done()
    go_on.set()
    if winner_commits:
        await first
        with pytest.raises(Refused, match="taskset one claimed it"):
            await second
        assert await splits(world, 1, 2, 3) == [TRAIN, TRAIN, UNASSIGNED]
    else:
        with pytest.raises(RuntimeError):
            await first
        assert (await second)[1]
        assert await splits(world, 1, 2, 3) == [UNASSIGNED, HELD_OUT, HELD_OUT]


async def test_many_tasks_are_claimed_in_reasonable_time(world: World) -> None:
    many = taskset("many", TRAIN, *range(100_000))
    began = time.monotonic()
    await world.do(lambda unit: store(unit, many))
    took = time.monotonic() - began
    assert took < 60, f"{took:.1f} s"
    with pytest.raises(Refused, match="'t1-99999'"):
        await add(world, "judge", HELD_OUT, 100_000, 99_999)


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
    async with asyncio.timeout(10):
        while fact is None:
            fact = await runner.bus.last(events_pb2.EpisodeRequested, model="incident")
    assert fact.message.split == common_pb2.SPLIT_UNASSIGNED


async def test_what_was_registered_before_is_claimed_by_the_migration(sql_url: str) -> None:
    database = Database(sql_url)
    await database.start()
    await database.run(lambda sql: move_tables(sql, "0001"))
    await database.run(_fill_as_before)
    await migrate(database, "scenario_runner")
    world = World(database)
    assert await splits(world, 1, 2, 3, 4, 5) == [TRAIN, HELD_OUT, HELD_OUT, UNASSIGNED, TRAIN]
    claims = sa.select(CLAIM.c.digest, CLAIM.c.claimed_by)
    by = await world.database.run(lambda sql: {row.digest: row.claimed_by for row in sql.execute(claims)})
    assert (by[digest(1)], by[digest(2)]) == ("taskset train", "taskset judge")
    # Names and keys are what they were, and so is what is played again.
    found = await world.do(lambda unit: unit.tasksets())
    assert [(one.name, one.key, one.revision) for one in found] == [
        (name, name, 1) for name in ("adhoc-0123456789ab", "judge", "train", "train2")
    ]
    # An ad-hoc taskset judges no more: no gate takes it, and its runs are no evidence.
    assert [one.split for one in found] == [UNASSIGNED, HELD_OUT, TRAIN, TRAIN]
    group = await world.do(lambda unit: unit.group("g"))
    run = await world.do(lambda unit: unit.run("r"))
    assert group is not None
    assert run is not None
    assert (group.taskset, run.taskset, run.taskset_revision, run.taskset_name) == (
        "train",
        "train",
        1,
        "train",
    )
    await database.run(lambda sql: move_tables(sql, "0001", back=True))
    before = sa.text("SELECT name, split FROM taskset ORDER BY name")
    rows = await database.run(lambda sql: [tuple(row) for row in sql.execute(before)])
    assert rows == [
        ("adhoc-0123456789ab", "held_out"),
        ("judge", "held_out"),
        ("train", "train"),
        ("train2", "train"),
    ]
    await database.stop()


def _fill_as_before(sql: sa.Connection) -> None:
    """Rows as version 0.1.0 wrote them."""
    taskset_row = sa.text(
        "INSERT INTO taskset (name, digest, split, source, num_tasks, registered_at) "
        "VALUES (:name, 'd', :split, :source, 2, :at)"
    )
    task_row = sa.text(
        "INSERT INTO task (taskset, position, slug, scenario, args_json, family, digest) "
        "VALUES (:name, :position, :slug, 's', '{}', 'default', :digest)"
    )
    source = '{"name": "e", "python": {"path": "/e.py"}}'
    for name, split, numbers in (
        ("train", TRAIN, (1, 2)),
        ("judge", HELD_OUT, (2, 3)),
        ("adhoc-0123456789ab", HELD_OUT, (1, 4)),
        ("train2", TRAIN, (1, 5)),
    ):
        fields = {"name": name, "split": split.value, "source": source, "at": START}
        sql.execute(taskset_row, fields)
        for position, number in enumerate(numbers):
            row = {"name": name, "position": position, "slug": f"t{number}", "digest": digest(number)}
            sql.execute(task_row, row)
    sql.execute(
        sa.text(
            "INSERT INTO run (run_id, request_id, model, purpose, split, state, spec, taskset, "
            "taskset_digest, num_tasks, trace_id, trace, failure, submitted_at) "
            "VALUES ('r', 'r', 'm', 'eval', 'train', 'running', :spec, 'train', 'd', 2, '', '{}', '', :at)"
        ),
        {"spec": wire.spec_to_json(eval_spec()), "at": START},
    )
    sql.execute(
        sa.text(
            "INSERT INTO task_group (group_id, run_id, position, task_position, expected_members, "
            "num_graded, is_open, outcome) VALUES ('g', 'r', 0, 0, 2, 0, :open, '')"
        ),
        {"open": True},
    )


def move_tables(sql: sa.Connection, revision: str, *, back: bool = False) -> None:
    """Migrate to a revision that is not the newest."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    script = ScriptDirectory.from_config(config)
    steps = script._downgrade_revs if back else script._upgrade_revs
    with EnvironmentContext(config, script, fn=lambda now, _: steps(revision, now)) as environment:
        environment.configure(connection=sql, version_table="scenario_runner_version", render_as_batch=True)
        environment.run_migrations()
