"""Leak scans of tasksets that are large, that hang, that need secrets, and that are deleted meanwhile."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.services.scenario_runner.conftest import Runner, Start
from tests.services.scenario_runner.support import register
from tests.services.scenario_runner.test_server_secrets import FILE, SERVER
from tests.services.scenario_runner.test_taskset_checks import asks, summary

from scenario_runner.adapters.sql_checks import TasksetChecks
from scenario_runner.domain.taskset_checks import CheckKind, TasksetCheck
from sql_store import Database, MigratedDatabase
from upcycle.api.taskset.v1 import service_pb2

SHOWS_ALL = '''
import time
from upcycle import Environment

env = Environment("incidents")
now = []


@env.tool()
def logs(name: str) -> str:
    """Lines of a service."""
    time.sleep(600 if now[-1] == "tool hangs" else 0)
    return ""


@env.scenario("ask")
async def ask(expected: str, shows: str = ""):
    now.append(shows)
    yield f"Not: {expected}. " + "lorem ipsum dolor " * (200_000 if shows == "much" else 1)
    yield 1.0
'''


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    """The service's own."""
    made = MigratedDatabase(sql_url, "scenario_runner")
    await made.start()
    yield made
    await made.stop()


async def test_the_planner_answers_while_a_large_taskset_is_searched(runner: Runner, tmp_path: Path) -> None:
    rows = [(f"answer number {at} of the set", "much" if at == 0 else "") for at in range(10_000)]
    await register(runner, asks(tmp_path, *rows, environment=SHOWS_ALL))
    searching = asyncio.create_task(summary(runner, "asks"))
    stood_s = 0.0
    while not searching.done():
        began = time.monotonic()
        await asyncio.sleep(0.05)
        stood_s = max(stood_s, time.monotonic() - began)
    (scan,) = (await searching).checks
    assert stood_s < 3.0, "it was 17 s"
    assert (scan.num_looked, scan.num_findings) == (20, 20)
    assert scan.stopped == (
        "task t0: its prompt has 3,600,033 characters, of which the first 65,536 were searched"
    )


async def test_a_leak_in_the_prompt_is_found_where_a_tool_hangs(runner: Runner, tmp_path: Path) -> None:
    await register(runner, asks(tmp_path, ("bad deploy", "tool hangs"), environment=SHOWS_ALL))
    (scan,) = (await summary(runner, "asks")).checks
    assert list(scan.findings) == ["t0: its prompt holds 'bad deploy', which the agent has to find"]
    assert (scan.num_looked, scan.stopped) == (0, "task t0: took longer than 10 s")


async def test_a_planner_stops_during_a_scan_which_stays_due(start_runner: Start, tmp_path: Path) -> None:
    runner = await start_runner()
    await register(runner, asks(tmp_path, *[(f"bad deploy {at}", "hangs") for at in range(20)]))
    await asyncio.sleep(3)
    began = time.monotonic()
    await runner.service.stop()
    assert time.monotonic() - began < 5
    with sqlite3.connect(tmp_path / "sql" / "scenario_runner.sqlite") as sql:
        assert sql.execute("select taskset, checked_at from taskset_check").fetchall() == [("asks", None)]


async def test_scans_wait_for_none_that_hangs_or_has_a_bug(
    runner: Runner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sqlite3.connect(tmp_path / "sql" / "scenario_runner.sqlite") as sql:
        sql.execute(
            "insert into taskset_check values ('default', 'never registered', 'leak_scan', '', '', '', '', "
            "'[]', 0, 0, 0, 0, null)"
        )
    hangs = asks(tmp_path, *[(f"bad deploy {at}", "hangs") for at in range(20)])
    hangs.name = "hangs"
    await register(runner, hangs)
    await asyncio.sleep(2)
    await register(runner, asks(tmp_path, ("pool exhausted", "prompt")))
    async with asyncio.timeout(15):
        (scan,) = (await summary(runner, "asks")).checks
    assert scan.num_findings == 1
    request = service_pb2.GetTasksetRequest(name="hangs", with_summaries=True)
    (other,) = (await runner.tasksets.GetTaskset(request)).revisions[0].checks
    assert not other.HasField("checked_at"), "it hangs still"
    assert "work_failed" in caplog.text


async def test_an_environment_that_needs_secrets_is_said_to_be_unsearched(
    start_runner: Start, tmp_path: Path
) -> None:
    runner = await start_runner(cell_files=(SERVER,))
    keyed = FILE.replace("SERVER", repr(str(SERVER))).replace('"arith"', '"incidents"')
    keyed = keyed.replace('"sum"', '"ask"').replace(
        "a: int = 0, b: int = 0", 'expected: str, shows: str = ""'
    )
    await register(runner, asks(tmp_path, ("bad deploy", ""), environment=keyed))
    (scan,) = (await summary(runner, "asks")).checks
    assert (scan.num_looked, scan.num_findings) == (0, 0)
    assert scan.stopped == (
        "nothing was searched: environment 'incidents' needs secrets that only episodes of a run are given: "
        "TOKEN (server keyed)"
    )


async def test_a_scan_of_a_taskset_that_was_deleted_meanwhile_leaves_nothing(database: Database) -> None:
    done = TasksetCheck("asks", CheckKind.LEAK_SCAN, "0" * 64, checked_at=datetime.now(UTC), num_looked=1)

    async def finished() -> bool:
        return await database.run(lambda connection: TasksetChecks(connection).finish(done))

    async def kept() -> list[TasksetCheck]:
        return await database.read(lambda connection: TasksetChecks(connection).of({"asks"}))

    await database.run(lambda connection: TasksetChecks(connection).want_scan("asks", "0" * 64))
    assert await finished()
    assert [one.num_looked for one in await kept()] == [1]
    await database.run(lambda connection: TasksetChecks(connection).forget({"asks"}))
    assert not await finished()
    assert await kept() == []
