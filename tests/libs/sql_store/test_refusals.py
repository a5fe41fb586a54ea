"""A database that refuses writes is named by `ready` until it takes one, however much of it can be read."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import IntegrityError
from tests.libs.sql_store.support import METADATA, NOTES, opened, texts, write
from tests.postgres import PROGRAMS, PostgresServer
from tests.support.waiting import until

from service_kit.errors import StoreFull
from sql_store import Database
from sql_store.migrations import MigratedDatabase
from upcycle.errors import Unavailable

LONG = "x" * 100_000


async def refuse_writes(db: Database, *, is_on: bool) -> None:
    """SQLite: of more than a few bytes. Postgres: in the one session that a test uses."""

    def refuse(connection: Connection) -> None:
        if connection.dialect.name == "sqlite":
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages + (2 if is_on else 1000)}")
        else:
            word = "on" if is_on else "off"
            connection.exec_driver_sql(f"SET SESSION default_transaction_read_only = {word}")

    await db.run(refuse)


def nothing_to_write(connection: Connection) -> None:
    connection.execute(update(NOTES).where(NOTES.c.text == "no such text").values(text="x"))


@asynccontextmanager
async def migrated(url: str) -> AsyncIterator[Database]:
    """A database as services have it."""
    db = MigratedDatabase(url, "trajectory_store")
    await db.start()
    await db.run(lambda connection: METADATA.create_all(connection, tables=[NOTES]))
    try:
        yield db
    finally:
        await db.stop()


async def test_a_database_that_refuses_writes_is_named_until_it_takes_one(sql_url: str) -> None:
    async with opened(sql_url) as db:
        await db.run(write("kept"))
        assert db.ready() is None
        await refuse_writes(db, is_on=True)
        with pytest.raises(Unavailable) as refused:
            await db.run(write(LONG))
        assert isinstance(refused.value, StoreFull) == sql_url.startswith("sqlite")
        assert await db.run(texts) == ["kept"]
        said = f"{refused.value} (no write was taken since)"
        assert db.ready() == said
        await refuse_writes(db, is_on=False)
        await db.run(nothing_to_write)
        assert db.ready() == said  # that no row fitted does not say that one would be taken
        await db.note(write("taken"))
        assert db.ready() is None


async def test_a_sqlite_that_may_only_be_read_is_named(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path / 'x.sqlite'}") as db:
        await db.run(lambda connection: connection.exec_driver_sql("PRAGMA query_only=on"))
        with pytest.raises(Unavailable):
            await db.run(write("refused"))
        assert "attempt to write a readonly database" in str(db.ready())
        assert "(nothing was taken since)" in str(db.ready())


async def test_a_database_that_nothing_is_written_to_is_asked_whether_it_takes_writes_again(
    sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with migrated(sql_url) as db:
        await refuse_writes(db, is_on=True)
        with pytest.raises(Unavailable):
            await db.run(write(LONG))
        await refuse_writes(db, is_on=False)
        for _ in range(3):
            assert "no write was taken since" in str(db.ready())  # not asked so soon
            await asyncio.sleep(0.1)
        monkeypatch.setattr("sql_store.database._TRIED_AFTER_S", 0.0)
        await until(lambda: db.ready() is None, "the database to be ready")


@pytest.mark.parametrize("work", [write("twice"), lambda sql: sql.exec_driver_sql("SELECT nonsense")])
async def test_what_the_caller_is_to_blame_for_is_no_refusal(
    sql_url: str, work: Callable[[Connection], object]
) -> None:
    async with opened(sql_url) as db:
        await db.run(write("twice"))
        with pytest.raises(Exception, match=r"UNIQUE|unique|nonsense") as raised:
            await db.run(work)
        assert not isinstance(raised.value, Unavailable)
        assert isinstance(raised.value, IntegrityError) == ("nonsense" not in str(raised.value))
        assert db.ready() is None


if PROGRAMS:

    async def test_a_crashed_postgres_is_named_until_it_answers(postgres_server: PostgresServer) -> None:
        url = postgres_server.database()
        async with opened(url) as db:
            await db.run(write("a"))

            def killed(connection: Connection) -> None:
                connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

            with pytest.raises(Unavailable):
                await db.run(killed)
            assert "(nothing was taken since)" in str(db.ready())
            assert await db.run(texts) == ["a"]
            assert db.ready() is None

    async def test_a_right_that_was_taken_away_is_an_outage(postgres_server: PostgresServer) -> None:
        async with opened(postgres_server.database()) as db:

            def as_reader(connection: Connection) -> None:
                connection.exec_driver_sql("CREATE ROLE only_reads")
                connection.exec_driver_sql("GRANT SELECT ON notes TO only_reads")
                connection.exec_driver_sql("SET LOCAL ROLE only_reads")
                assert connection.execute(select(NOTES.c.text)).all() == []
                write("refused")(connection)

            with pytest.raises(Unavailable, match="permission denied"):
                await db.run(as_reader)
            assert "permission denied" in str(db.ready())
            await db.run(write("taken"))
            assert db.ready() is None

    async def test_a_database_that_still_refuses_when_it_is_asked_stays_named(
        postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sql_store.database._TRIED_AFTER_S", 0.0)
        async with migrated(postgres_server.database()) as db:
            await refuse_writes(db, is_on=True)
            with pytest.raises(Unavailable):
                await db.run(write("refused"))
            for _ in range(5):
                assert "read-only" in str(db.ready())
                await asyncio.sleep(0.1)
