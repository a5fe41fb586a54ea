"""What a service reads at its start costs what is open, not what ever was: steps of SQLite, counted."""

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from checkpoint_registry.adapters import tables as registry
from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.sql_pairs import SqlPairStore
from checkpoint_registry.usecases.rollback import RollbackPolicy, WatchHead
from scenario_runner.adapters import tables as planner
from scenario_runner.adapters.sql_plan import SqlPlan
from sql_store import Database, MigratedDatabase
from sql_store.outbox import OUTBOX
from sql_store.relay import _unpublished
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.adapters.sql_retention import SqlRetention
from trajectory_store.adapters.tables import EPISODES, LEDGER
from trajectory_store.domain.facts import LedgerState

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
_REFERS_TO_NOTHING = {"new_task": None}
_BY_TYPE = {str: "", bytes: b"", bool: False, datetime: NOON}


def rows_like(table: sa.Table, values: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """With neutral values for all other columns."""
    neutral = {column.name: _BY_TYPE.get(_python_type(column), 0) for column in table.columns}
    names = neutral.keys() & _REFERS_TO_NOTHING.keys()
    neutral |= {"tenant": "default"} | {name: _REFERS_TO_NOTHING[name] for name in names}
    return [{**neutral, **one} for one in values]


def _python_type(column: sa.Column[object]) -> type:
    kind = column.type
    return getattr(kind, "impl_instance", kind).python_type


async def fill(database: Database, table: sa.Table, values: Sequence[Mapping[str, object]]) -> None:
    rows = rows_like(table, values)
    await database.run(lambda connection: connection.execute(sa.insert(table), rows))


async def steps_of(database: Database, work: Callable[[], Awaitable[object]]) -> int:
    """Of SQLite's machine, in hundreds."""
    count = [0]

    def step() -> int:
        count[0] += 1
        return 0

    def watch(connection: sa.Connection, handler: Callable[[], int] | None) -> None:
        raw = connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        raw.set_progress_handler(handler, 100)

    await work()  # what is prepared once
    await database.run(lambda connection: watch(connection, step))
    await work()
    await database.run(lambda connection: watch(connection, None))
    return count[0]


async def planner_start(folder: Path, finished: int) -> int:
    database = MigratedDatabase(f"sqlite:///{folder}/planner-{finished}.sqlite", "scenario_runner")
    await database.start()
    await fill(database, planner.TASKSET, [{"storage_key": "ts", "name": "ts"}])
    runs = [
        {"run_id": f"run-{n}", "request_id": f"r-{n}", "state": "completed", "taskset": "ts"}
        for n in range(finished)
    ]
    await fill(database, planner.RUN, runs)
    groups = [{"group_id": f"run-{n}-g00000", "run_id": f"run-{n}", "taskset": "ts"} for n in range(finished)]
    await fill(database, planner.GROUP, groups)
    plan = SqlPlan(database, now=lambda: NOON)

    async def start() -> None:
        assert await plan.read(lambda unit: unit.active_runs()) == []
        await published(database)

    await published_rows(database, finished)
    steps = await steps_of(database, start)
    await database.stop()
    return steps


async def published_rows(database: Database, number: int) -> None:
    """Facts of a day that were published, which the outbox has not pruned yet."""
    rows = [
        {"stream": "EVENTS", "subject": "s", "event_id": f"e-{n}", "schema": "x", "payload": "{}",
         "trace": "{}", "enqueued_at": NOON, "published_at": NOON, "again": False}
        for n in range(number)
    ]  # fmt: skip
    await database.run(lambda connection: connection.execute(sa.insert(OUTBOX), rows))


async def published(database: Database) -> None:
    """What the relay of the outbox asks first."""
    assert await database.run(lambda connection: _unpublished(connection, "EVENTS", (), ())) == []


async def store_start(folder: Path, finished: int) -> int:
    database = MigratedDatabase(f"sqlite:///{folder}/store-{finished}.sqlite", "trajectory_store")
    await database.start()
    episodes: list[dict[str, object]] = [
        {"episode_id": f"run-{n}-g00000-e{e:03d}-a0", "run_id": f"run-{n}",
         "state": int(LedgerState.EVALUATED), "settled": True, "body_checked": True,
         "body_key": "k", "body_removed_us": None}
        for n in range(finished) for e in range(2)
    ]  # fmt: skip
    await fill(database, EPISODES, episodes)
    counts = [{"run_id": f"run-{n}", "state": 5, "reason": "", "count": 4} for n in range(finished)]
    await fill(database, LEDGER, counts)
    await published_rows(database, finished)
    index, retention = SqlIndex(database), SqlRetention(database)

    async def start() -> None:
        assert await index.unchecked(100) == []
        assert await retention.bodies_going(100) == {}
        await index.position()
        await published(database)

    steps = await steps_of(database, start)
    await database.stop()
    return steps


async def registry_start(folder: Path, finished: int) -> int:
    database = MigratedDatabase(f"sqlite:///{folder}/registry-{finished}.sqlite", "checkpoint_registry")
    await database.start()
    await fill(database, registry.model, [{"model": "m", "head_checkpoint_id": "c-0"}])
    saved: list[dict[str, object]] = [
        {"checkpoint_id": f"c-{n}", "model": "m", "version": n, "run_id": f"run-{n}", "manifest": {},
         "training_state": {}, "metrics": {}, "sources": {}}
        for n in range(finished)
    ]  # fmt: skip
    await fill(database, registry.checkpoint, saved)
    jobs: list[dict[str, object]] = [
        {"checkpoint_id": f"c-{n}", "model": "m", "version": n, "run_id": f"run-{n}", "phase": "done",
         "taskset_digest": "d", "active_for_model": None, "gate": {}, "profile": {}}
        for n in range(finished)
    ]  # fmt: skip
    await fill(database, registry.gate_job, jobs)
    await published_rows(database, finished)
    gates, leases = SqlGateStore(database), SqlLeaseStore(database)

    async def start() -> None:
        await leases.forget_lapsed(NOON - timedelta(hours=1))
        assert await gates.models_with_open_jobs() == []
        assert await gates.models_evaluated_since_promotion() == []
        await published(database)

    steps = await steps_of(database, start)
    await database.stop()
    return steps


@pytest.mark.parametrize("start", [planner_start, store_start, registry_start])
async def test_a_start_beside_a_thousand_finished_runs_costs_as_much_as_beside_ten(
    start: Callable[[Path, int], Awaitable[int]], tmp_path: Path
) -> None:
    few, many = await start(tmp_path, 10), await start(tmp_path, 1000)
    assert many <= few + 3, f"{few} hundreds of steps beside 10 finished runs, {many} beside 1,000"


async def watched_head(folder: Path, moves: int) -> int:
    """What the gate asks at each poll of a model whose head was moved so often."""
    database = MigratedDatabase(f"sqlite:///{folder}/head-{moves}.sqlite", "checkpoint_registry")
    await database.start()
    head = {"model": "m", "head_checkpoint_id": f"c-{moves}", "head_revision": moves}
    await fill(database, registry.model, [head])
    versions = [moves - 1, moves]
    saved: list[dict[str, object]] = [
        {"checkpoint_id": f"c-{n}", "model": "m", "version": n, "manifest": {}, "training_state": {},
         "metrics": {}, "sources": {}} for n in versions
    ]  # fmt: skip
    await fill(database, registry.checkpoint, saved)
    latest = {"model": "m", "manifest": {"key": "k", "sha256": "s", "size_bytes": 1}, "removed_at": None}
    await fill(database, registry.published_version, [latest])
    await fill(database, registry.head_move, [
        {"model": "m", "revision": n, "from_checkpoint_id": f"c-{n - 1}", "to_checkpoint_id": f"c-{n}",
         "actor": "a person"} for n in range(1, moves + 1)
    ])  # fmt: skip
    stores = SqlGateStore(database), SqlPairStore(database), SqlModelStore(database)
    watch = WatchHead(*stores, RollbackPolicy(), now=lambda: NOON)
    steps = await steps_of(database, lambda: watch.consider("m"))
    await database.stop()
    return steps


async def test_a_look_at_head_reads_its_last_move_alone(tmp_path: Path) -> None:
    few, many = await watched_head(tmp_path, 10), await watched_head(tmp_path, 1000)
    assert many <= few + 3, f"{few} hundreds of steps after 10 moves, {many} after 1,000"
