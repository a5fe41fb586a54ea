"""Databases of released versions: their revisions make what they made then, and become today's tables."""

from typing import Any

import pytest
from sqlalchemy import Connection, select
from tests.services.released_tables import (
    RELEASED,
    SERVICES,
    fill,
    lines_of,
    migrate_to,
    recorded,
    reflected,
    revision_of,
)

from sql_store import Database, migrate

VERSIONS = sorted(file.stem for file in RELEASED.glob("*.txt"))
Rows = dict[str, list[dict[str, Any]]]


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
