"""The contract of Database, on every backend this machine has."""

import asyncio
import contextvars
import sqlite3
import threading
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from tests.libs.sql_store.support import NOTES, opened, texts, write
from tests.postgres import PROGRAMS, PostgresServer
from tests.support.waiting import until

from event_bus import PoisonMessage
from service_kit.errors import StoreFull
from sql_store import Database, UnsupportedDatabase, UtcDateTime
from sql_store.database import give_notice
from upcycle.errors import Unavailable


async def test_a_transaction_commits_when_the_function_returns(sql_url: str) -> None:
    async with opened(sql_url) as db:
        await db.run(write("a"))
        assert await db.run(texts) == ["a"]
    async with opened(sql_url) as db:
        assert await db.run(texts) == ["a"]


async def test_a_transaction_leaves_nothing_when_the_function_raises(sql_url: str) -> None:
    def half(connection: Connection) -> None:
        write("a")(connection)
        raise LookupError("changed my mind")

    async with opened(sql_url) as db:
        with pytest.raises(LookupError, match="changed my mind"):
            await db.run(half)
        assert await db.run(texts) == []


async def test_a_conflict_is_the_callers_to_handle(sql_url: str) -> None:
    async with opened(sql_url) as db:
        await db.run(write("a"))
        with pytest.raises(IntegrityError):
            await db.run(write("a"))
        assert await db.run(texts) == ["a"]


async def test_texts_that_postgres_cannot_hold_are_stored_without_the_bytes_in_question(sql_url: str) -> None:
    def fill(connection: Connection) -> None:
        connection.execute(insert(NOTES).values(text="a\0b"))
        connection.execute(insert(NOTES), [{"text": "c\ud800d"}, {"text": "e\tf\n"}])
        connection.execute(insert(NOTES).values([{"text": "\0"}, {"text": "g"}]))

    async with opened(sql_url) as db:
        await db.run(fill)
        assert await db.run(texts) == ["a\ufffdb", "c\ufffdd", "e\tf\n", "\ufffd", "g"]
        found = select(NOTES.c.id).where(NOTES.c.text.in_(["a\0b", "g"]))
        assert await db.run(lambda connection: len(connection.execute(found).all())) == 2


async def test_a_wrong_statement_is_not_an_outage(sql_url: str) -> None:
    async with opened(sql_url) as db:
        with pytest.raises(DBAPIError, match="nowhere"):
            await db.run(lambda connection: connection.execute(text("SELECT nothing FROM nowhere")))


@pytest.mark.parametrize("beyond", [2**63, -(2**63) - 1])
async def test_an_integer_beyond_64_bits_is_poison(sql_url: str, beyond: int) -> None:
    row = insert(NOTES).values(id=beyond, text="x")
    async with opened(sql_url) as db:
        with pytest.raises(PoisonMessage, match="refuses a value"):
            await db.run(lambda connection: connection.execute(row))
        assert await db.run(texts) == []


async def test_read_then_write_loses_no_update(sql_url: str) -> None:
    counters = Table("counters", MetaData(), Column("id", Integer, primary_key=True), Column("n", Integer))

    def increment(connection: Connection) -> None:
        lock = select(counters.c.n).where(counters.c.id == 1).with_for_update()
        n = connection.execute(lock).scalar_one()
        connection.execute(counters.update().values(n=n + 1))

    async with opened(sql_url) as db, opened(sql_url) as other:
        await db.run(lambda connection: counters.create(connection))
        await db.run(lambda connection: connection.execute(insert(counters).values(id=1, n=0)))
        await asyncio.gather(*(one.run(increment) for one in (db, other) for _ in range(25)))
        assert await db.run(lambda connection: connection.execute(select(counters.c.n)).scalar_one()) == 50


async def test_the_event_loop_stays_free(sql_url: str) -> None:
    begun, loop_ran = threading.Event(), threading.Event()

    def slow(_: Connection) -> str:
        begun.set()
        assert loop_ran.wait(30), "the loop did nothing while the statement ran"
        return threading.current_thread().name

    async with opened(sql_url) as db:
        running = asyncio.create_task(db.run(slow))
        await until(begun.is_set, "the statement to begin")
        loop_ran.set()
        assert (await running).startswith("sql")


async def test_context_variables_reach_the_function(sql_url: str) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    async with opened(sql_url) as db:
        variable.set("set")
        assert await db.run(lambda _: variable.get()) == "set"


async def test_listeners_are_called_after_a_commit_and_not_after_a_rollback(sql_url: str) -> None:
    notified: list[str] = []

    def noticed(connection: Connection, *, fail: bool) -> None:
        give_notice(connection, "notes")
        if fail:
            raise LookupError

    async with opened(sql_url) as db:
        db.listen("notes", lambda: notified.append("notes"))
        with pytest.raises(LookupError):
            await db.run(lambda connection: noticed(connection, fail=True))
        assert notified == []
        await db.run(write("a"))
        assert notified == []
        await db.run(lambda connection: noticed(connection, fail=False))
        assert notified == ["notes"]


async def test_moments_come_back_aware_and_equal(sql_url: str) -> None:
    moments = Table("moments", MetaData(), Column("at", UtcDateTime()))
    noon = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=timezone(timedelta(hours=5)))
    async with opened(sql_url) as db:
        await db.run(lambda connection: moments.create(connection))
        await db.run(lambda connection: connection.execute(insert(moments).values(at=noon)))
        back = await db.run(lambda connection: connection.execute(select(moments.c.at)).scalar_one())
        assert back == noon
        assert back.tzinfo is UTC
        with pytest.raises(Exception, match="no time zone"):
            await db.run(
                lambda connection: connection.execute(insert(moments).values(at=datetime(2026, 1, 1)))
            )


async def test_a_closed_database_says_so(sql_url: str) -> None:
    async with opened(sql_url) as db:
        assert db.ready() is None
    assert db.ready() is not None
    with pytest.raises(Unavailable, match="was closed"):
        await db.run(texts)


async def test_a_url_shown_in_an_error_hides_its_password() -> None:
    db = Database("postgresql://user:hunter2@127.0.0.1:1/x")
    with pytest.raises(Unavailable) as caught:
        await db.start()
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1:1/x" in str(caught.value)
    await db.stop()


@pytest.mark.parametrize("url", ["mysql://localhost/x", "nonsense"])
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(UnsupportedDatabase, match="sqlite:///FILE or postgresql://"):
        Database(url)


async def test_sqlite_is_durable_and_checks_references(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path / 'deep' / 'er' / 'x.sqlite'}") as db:

        def pragmas(connection: Connection) -> list[object]:
            names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            return [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names]

        assert await db.run(pragmas) == ["wal", 2, 1, 10000]


async def test_only_a_note_does_not_wait_for_the_disk(sql_url: str) -> None:
    async with opened(sql_url) as db:
        is_sqlite = db.dialect == "sqlite"
        asked = "PRAGMA synchronous" if is_sqlite else "SHOW synchronous_commit"

        def how(connection: Connection) -> object:
            write(f"{connection.exec_driver_sql(asked).scalar_one()}")(connection)
            return connection.exec_driver_sql(asked).scalar_one()

        waits, does_not = (2, 1) if is_sqlite else ("on", "off")
        assert await db.note(how) == does_not
        assert await db.run(how) == waits
    async with opened(sql_url) as db:
        assert await db.run(texts) == [str(does_not), str(waits)]
        assert await db.run(lambda sql: sql.exec_driver_sql(asked).scalar_one()) == waits


async def test_a_full_sqlite_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path / 'x.sqlite'}") as db:
        await db.run(write("kept"))

        def bound(connection: Connection) -> None:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 2}")

        await db.run(bound)
        with pytest.raises(StoreFull, match="nothing was written, make room"):
            await db.run(write("x" * 100_000))
        assert await db.run(texts) == ["kept"]
        await db.run(lambda connection: connection.exec_driver_sql("PRAGMA max_page_count=1000000"))
        await db.run(write("y" * 100_000))


async def test_an_unusable_sqlite_file_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"this is not a database" * 100)
    db = Database(f"sqlite:///{tmp_path / 'x.sqlite'}")
    with pytest.raises(Unavailable, match="not a database"):
        await db.start()
    await db.stop()
    (tmp_path / "file").write_text("in the way")
    db = Database(f"sqlite:///{tmp_path / 'file' / 'x.sqlite'}")
    with pytest.raises(Unavailable, match="cannot make the folder"):
        await db.start()
    await db.stop()


async def test_a_new_sqlite_waits_for_the_first_transaction_of_another_process(tmp_path: Path) -> None:
    file = tmp_path / "x.sqlite"
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("CREATE TABLE begun (id)")
    other.execute("BEGIN IMMEDIATE")
    database = Database(f"sqlite:///{file}")
    starting = asyncio.create_task(database.start())
    done, _ = await asyncio.wait({starting}, timeout=0.3)  # it needs the lock that is held
    other.execute("COMMIT")
    await starting
    assert not done
    other.close()
    await database.stop()


async def test_a_sqlite_locked_by_another_process_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sql_store.database._BUSY_TIMEOUT_MS", 200)
    url = f"sqlite:///{tmp_path / 'x.sqlite'}"
    async with opened(url) as db, opened(url) as other:
        held, release = threading.Event(), threading.Event()

        def hold(connection: Connection) -> None:
            write("held")(connection)
            held.set()
            release.wait(10)

        holding = asyncio.create_task(other.run(hold))
        await asyncio.to_thread(held.wait, 10)
        with pytest.raises(Unavailable, match="locked"):
            await db.run(write("mine"))
        release.set()
        await holding
        await db.run(write("mine"))
        assert await db.run(texts) == ["held", "mine"]


if PROGRAMS:

    async def test_postgres_comes_back_after_a_crash() -> None:
        with PostgresServer() as server:
            async with opened(server.database()) as db:
                await db.run(write("a"))
                await asyncio.to_thread(server.stop)
                with pytest.raises(Unavailable):
                    await db.run(write("b"))
                await asyncio.to_thread(server.start)
                await db.run(write("c"))
                assert await db.run(texts) == ["a", "c"]

    async def test_a_value_that_postgres_will_never_take_is_poison(postgres_server: PostgresServer) -> None:
        long = Table("long", MetaData(), Column("text", String(3)))
        async with opened(postgres_server.database()) as db:
            await db.run(long.create)
            with pytest.raises(PoisonMessage, match=r"refuses a value .*value too long"):
                await db.run(lambda connection: connection.execute(insert(long).values(text="four")))

    async def test_a_lock_that_is_held_too_long_is_an_outage(
        postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sql_store.database._BUSY_TIMEOUT_MS", 200)
        url = postgres_server.database()
        async with opened(url) as db, opened(url) as other:
            await db.run(write("a"))
            rename = NOTES.update().where(NOTES.c.text == "a").values(text="b")
            held, release = threading.Event(), threading.Event()

            def hold(connection: Connection) -> None:
                connection.execute(rename)
                held.set()
                release.wait(20)

            holding = asyncio.create_task(other.run(hold))
            await asyncio.to_thread(held.wait, 20)
            with pytest.raises(Unavailable, match="LockNotAvailable"):
                await db.run(lambda connection: connection.execute(rename))
            release.set()
            await holding
            assert await db.run(texts) == ["b"]

    async def test_a_deadlock_is_run_again(postgres_server: PostgresServer) -> None:
        url = postgres_server.database()
        async with opened(url) as db:
            await db.run(write("a"))
            await db.run(write("b"))
            barrier, tries = threading.Barrier(2, timeout=60), []

            def both(connection: Connection, first: str, second: str) -> None:
                tries.append(first)
                for name in (first, second):
                    connection.execute(NOTES.update().where(NOTES.c.text == name).values(text=name))
                    if len(tries) <= 2 and name == first:
                        barrier.wait()

            await asyncio.gather(
                db.run(lambda connection: both(connection, "a", "b")),
                db.run(lambda connection: both(connection, "b", "a")),
            )
            assert len(tries) >= 3  # four, when the one that runs again is faster than the other and meets it
