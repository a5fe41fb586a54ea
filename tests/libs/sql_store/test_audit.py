"""The audit log: entries are there with their change or not at all, and nothing changes or removes one."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sql_store import Database, MigratedDatabase
from sql_store.audit import AUDIT, MAX_TEXT, AuditEntry, add_entry, entries

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


def entry(outcome: str, who: str = "operator", hours: int = 0) -> AuditEntry:
    at = NOON + timedelta(hours=hours)
    return AuditEntry(at, who, who, "RegistryService/SetHead", "model incident", "d" * 64, outcome)


def adding(one: AuditEntry, connection: sa.Connection) -> None:
    add_entry(connection, one)


def executing(statement: sa.Executable, connection: sa.Connection) -> None:
    connection.execute(statement)


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    database = MigratedDatabase(sql_url, "checkpoint_registry")
    await database.start()
    yield database
    await database.stop()


async def outcomes(database: Database, **wanted: object) -> list[str]:
    asked = {"since": None, "who": "", "after": 0, "limit": 1000, **wanted}
    return [one.outcome for one in await entries(database, **asked)]  # type: ignore[arg-type]


async def test_entries_are_read_in_their_order_by_time_principal_and_page(database: Database) -> None:
    for one in (entry("a"), entry("b", "key:x", hours=1), entry("c", hours=2)):
        await database.run(partial(adding, one))
    found = await entries(database, since=None, who="", after=0, limit=2)
    assert [one.outcome for one in found] == ["a", "b"]
    assert (found[0].at, found[0].object, found[0].digest) == (NOON, "model incident", "d" * 64)
    assert await outcomes(database, after=found[-1].number) == ["c"]
    assert await outcomes(database, since=NOON + timedelta(hours=1)) == ["b", "c"]
    assert await outcomes(database, who="operator") == ["a", "c"]


async def test_an_entry_goes_with_the_transaction_that_fails(database: Database) -> None:
    def work(connection: sa.Connection) -> None:
        add_entry(connection, entry("never"))
        raise RuntimeError("the change failed")

    with pytest.raises(RuntimeError):
        await database.run(work)
    assert await outcomes(database) == []


async def test_the_database_refuses_to_change_or_remove_an_entry(database: Database) -> None:
    await database.run(lambda connection: add_entry(connection, entry("kept")))
    attempts: list[sa.Executable] = [sa.update(AUDIT).values(outcome="forged"), sa.delete(AUDIT)]
    if database.dialect == "postgresql":
        attempts.append(sa.text("TRUNCATE audit_entry"))
    else:  # which removes the row that it replaces, and asks no trigger of DELETE
        forged = {**dict.fromkeys(("who", "name", "rpc", "object", "digest"), ""), "outcome": "forged"}
        attempts.append(sa.insert(AUDIT).prefix_with("OR REPLACE").values(number=1, at=NOON, **forged))
    for attempt in attempts:
        with pytest.raises(DBAPIError, match="the audit log is only added to"):
            await database.run(partial(executing, attempt))
    assert await outcomes(database) == ["kept"]


async def test_a_text_without_end_is_cut(database: Database) -> None:
    long = "x" * 10_000
    one = AuditEntry(NOON, long, long, long, long, long, long)
    await database.run(lambda connection: add_entry(connection, one))
    (found,) = await entries(database, since=None, who="", after=0, limit=2)
    assert (found.object, found.outcome) == ("x" * MAX_TEXT, "x" * MAX_TEXT)
    assert {found.who, found.name, found.rpc, found.digest} == {"x" * 128}
