"""What is asked often reads few rows, on both databases: no table whole, and as many rows beside four times
as much history. The questions are those of `benchmarks/scale`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from benchmarks.scale.platform import Platform, platform, sqlite_urls
from benchmarks.scale.questions import QUESTIONS, Question
from benchmarks.scale.size import RUNS_PER_MODEL, Size
from benchmarks.scale.tables import FILLS
from tests.postgres import BACKENDS, PostgresServer
from tests.services.query_plans import WholeScan, rows_visited, scans_of
from tests.services.test_restarts import steps_of

from sql_store import Database

SERVICES = {"planner": "scenario_runner", "store": "trajectory_store", "registry": "checkpoint_registry"}
OF_WHAT_IS_OPEN = ("run_not_over", "ix_episodes_unsettled", "ix_episodes_unchecked", "checkpoint_interactive")
"""Indexes that hold no row of what is over, or few."""
OF_FEW_ROWS = ("feed", "model", "new_task")
"""One row, one for each model, or none, as no run here makes tasks: so few that Postgres joins them in any
order."""
SUMMED = ("ledger_counts", "ledger_alarms")
"""What `GetLedger` adds up for all runs; of one run it reads that run's rows alone."""
MANY_STEPS = 60
"""Hundreds of SQLite's steps that may differ: the runs that are asked for differ."""
MANY_ROWS = 1_200
"""The same of Postgres' rows. A run has 500 episodes."""

Urls = Callable[[str], dict[str, str]]


@pytest.fixture(params=BACKENDS)
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Urls:
    """By a name, URLs of an empty database for each service."""
    if request.param == "sqlite":
        return lambda name: sqlite_urls(tmp_path / name)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return lambda _: {service: server.database() for service in FILLS}


@asynccontextmanager
async def filled(urls: Urls, name: str, runs: int) -> AsyncIterator[Platform]:
    """With runs that are open, too."""
    async with platform(urls(name), Size(runs)) as on:
        for question in QUESTIONS[:2]:
            for _ in range(3):
                await question.ask(on)
        yield on


def database_of(on: Platform, question: Question) -> Database:
    return on.databases[SERVICES[question.name.partition(":")[0]]]


def is_allowed(scan: WholeScan) -> bool:
    bounded = any(index in scan.how for index in OF_WHAT_IS_OPEN)
    return scan.is_limited or bounded or scan.table in (*OF_FEW_ROWS, *SUMMED)


async def test_no_question_reads_a_whole_table(urls: Urls) -> None:
    found: list[str] = []
    async with filled(urls, "whole", RUNS_PER_MODEL * 2) as on:
        for question in QUESTIONS:
            scans = await scans_of(database_of(on, question), partial(question.ask, on))
            found += [
                f"{question.name}: {one.table} {one.how}: {one.statement}"
                for one in scans
                if not is_allowed(one)
            ]
    assert found == [], "these read every row of a table, or every row of a tenant"


async def cost_of(question: Question, on: Platform) -> int:
    """In hundreds of SQLite's steps, or in rows that Postgres looks at."""
    database = database_of(on, question)
    count = steps_of if database.dialect == "sqlite" else rows_visited
    return await count(database, partial(question.ask, on))


@pytest.mark.study
async def test_a_question_costs_as_much_beside_four_times_the_history(urls: Urls) -> None:
    grown: list[str] = []
    async with filled(urls, "few", 60) as few, filled(urls, "many", 240) as many:
        for question in QUESTIONS:
            if question.name == "store: GetLedger of all":
                continue
            slack = MANY_STEPS if database_of(few, question).dialect == "sqlite" else MANY_ROWS
            less, more = await cost_of(question, few), await cost_of(question, many)
            if more > less * 1.3 + slack:
                grown.append(f"{question.name}: {less} beside 60 finished runs, {more} beside 240")
    assert grown == []
