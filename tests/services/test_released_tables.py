"""Databases of released versions: their revisions make what they made then, and become today's tables."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from sqlalchemy import JSON, Column, Connection, insert, select
from tests.services.released_tables import (
    RELEASED,
    SERVICES,
    lines_of,
    migrate_to,
    recorded,
    reflected,
    revision_of,
)

from sql_store import Database, migrate

VERSIONS = sorted(file.stem for file in RELEASED.glob("*.txt"))
_VALUES: Final[dict[type, Any]] = {
    str: "{}",  # also where a column holds JSON as text
    int: 1,
    float: 1.0,
    bool: False,
    bytes: b"",
    datetime: datetime(2026, 11, 23, tzinfo=UTC),
}
Rows = dict[str, list[dict[str, Any]]]


def value_of(column: Column[Any]) -> Any:
    return {} if isinstance(column.type, JSON) else _VALUES[column.type.python_type]


def fill(connection: Connection) -> None:
    """One row in each table that has none. Rows that refer to each other have the same keys."""
    for table in reflected(connection).sorted_tables:
        if connection.execute(select(table)).first() is None:
            connection.execute(insert(table).values({one.name: value_of(one) for one in table.columns}))


def rows_of(connection: Connection) -> Rows:
    """All rows, without the table in which alembic counts."""
    tables = [table for table in reflected(connection).sorted_tables if not table.name.endswith("_version")]
    return {
        table.name: [dict(row) for row in connection.execute(select(table)).mappings()] for table in tables
    }


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_released_database_becomes_the_tables_of_today_and_keeps_its_rows(
    version: str, service: str, sql_url: str
) -> None:
    """A fresh database is made by the same revisions. So these are never edited, and what they call may not
    change what they make: a change of a table is a new revision."""
    backend = sql_url.partition(":")[0].partition("+")[0]
    database = Database(sql_url)
    await database.start()
    try:
        await migrate_to(database, service, revision_of(version, service))
        made = await database.run(lambda connection: lines_of(connection, backend))
        assert made == [line for line in recorded(version)[service] if line.startswith(backend)], (
            f"the revisions of {version} make other tables now: databases of {version} do not have them"
        )
        await database.run(fill)
        before = await database.run(rows_of)
        await migrate(database, service)
        after = await database.run(rows_of)
    finally:
        await database.stop()
    assert all(before.values())
    for table, rows in before.items():
        kept = [{name: row[name] for name in rows[0]} for row in after[table]]
        assert kept == rows, table
