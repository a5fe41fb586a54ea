"""Rows of prepared statements: what SQLAlchemy would store, on both databases."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    select,
    update,
)
from sqlalchemy import insert as inserting
from sqlalchemy.exc import IntegrityError

from sql_store import Database, PreparedRows, UtcDateTime, columns, owned

NOTE = Table(
    "note",
    MetaData(),
    *columns("tenant name", String, primary_key=True),
    *columns("said", Text),
    *columns("count", BigInteger),
    *columns("at", UtcDateTime),
    *columns("raw", LargeBinary),
    *columns("tags", JSON),
)
INSERT = PreparedRows(inserting(NOTE), [column.name for column in NOTE.columns])
COUNT = PreparedRows(
    update(NOTE)
    .where(owned(NOTE, name=bindparam("of_name")), NOTE.c.count == bindparam("before"))
    .values(count=bindparam("count"), at=bindparam("at")),
    ("of_name", "before", "count", "at"),
)
AT = datetime(2026, 11, 29, 12, 30, 0, 250000, tzinfo=timezone(timedelta(hours=2)))


def row(name: str, **changes: Any) -> dict[str, Any]:
    values = {"said": "so", "count": 1, "at": AT, "raw": b"\0x", "tags": ["a", {"b": 1}], **changes}
    return {"tenant": "default", "name": name, **values}


@pytest.fixture
async def db(sql_url: str) -> Any:
    database = Database(sql_url)
    await database.start()
    await database.run(lambda connection: NOTE.create(connection))
    yield database
    await database.stop()


async def rows_in(db: Database) -> list[Any]:
    query = select(NOTE).order_by(NOTE.c.name)
    return await db.run(lambda connection: list(connection.execute(query).mappings()))


async def test_rows_are_stored_as_by_sqlalchemy(db: Database) -> None:
    def both(connection: Connection) -> int:
        connection.execute(inserting(NOTE), [row("a")])
        return INSERT.run(connection, [row("b"), row("c")])

    assert await db.run(both) == 2
    first, *others = [{**one, "name": ""} for one in await rows_in(db)]
    assert others == [first, first]
    assert first["at"] == AT.astimezone(UTC)


async def test_any_text_is_stored(db: Database) -> None:
    await db.run(
        lambda connection: INSERT.run(connection, [row("a", said="a\0b\ud800"), row("b", said="\u00fc")])
    )
    assert [one["said"] for one in await rows_in(db)] == ["a\ufffdb\ufffd", "\u00fc"]


async def test_only_rows_that_are_as_they_were_are_changed_and_counted(db: Database) -> None:
    await db.run(lambda connection: INSERT.run(connection, [row("a"), row("b", count=7), row("c")]))
    changes = [{"of_name": name, "before": 1, "count": 2, "at": AT} for name in "abcd"]
    assert await db.run(lambda connection: COUNT.run(connection, changes)) == 2
    assert [one["count"] for one in await rows_in(db)] == [2, 7, 2]


async def test_nothing_is_done_without_rows(db: Database) -> None:
    assert await db.run(lambda connection: INSERT.run(connection, [])) == 0


async def test_a_conflict_is_the_caller_s_and_leaves_nothing(db: Database) -> None:
    with pytest.raises(IntegrityError):
        await db.run(lambda connection: INSERT.run(connection, [row("a"), row("a")]))
    assert await rows_in(db) == []
