"""The tables of a released version, as text: `python -m tests.services.released_tables` prints those of
today, to be stored beside this file as released/<version>.txt when a version is tagged.

One line per column, index and key, on SQLite and Postgres; and the newest revision of each service.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Column, Connection, MetaData, insert, inspect, select
from tests.postgres import PROGRAMS, PostgresServer

from sql_store import Database, migrate

SERVICES: Final = ("checkpoint_registry", "model_gateway", "scenario_runner", "trajectory_store")
RELEASED: Final = Path(__file__).parent / "released"
_UPGRADE: Final = ScriptDirectory._upgrade_revs
_VALUES: Final[dict[type, Any]] = {
    str: "{}",  # also where a column holds JSON as text
    int: 1,
    float: 1.0,
    bool: False,
    bytes: b"",
    datetime: datetime(2026, 11, 23, tzinfo=UTC),
}


def recorded(version: str) -> dict[str, list[str]]:
    """By service, the lines of a released version."""
    lines: dict[str, list[str]] = {service: [] for service in SERVICES}
    for line in (RELEASED / f"{version}.txt").read_text().splitlines():
        service, _, rest = line.partition(" ")
        lines[service].append(rest)
    return lines


def revision_of(version: str, service: str) -> str:
    """The newest revision that a released version had."""
    (line,) = [line for line in recorded(version)[service] if line.startswith("revision ")]
    return line.removeprefix("revision ")


async def migrate_to(db: Database, service: str, revision: str) -> None:
    """Bring empty tables to a revision, as the version did of which it was the newest."""

    def upgrade(script: ScriptDirectory, _: str, current: Any) -> Any:
        return _UPGRADE(script, revision, current)

    with patch.object(ScriptDirectory, "_upgrade_revs", upgrade):
        await migrate(db, service)


def _value_of(column: Column[Any]) -> Any:
    return {} if isinstance(column.type, JSON) else _VALUES[column.type.python_type]


def fill(connection: Connection) -> None:
    """One row in each table that has none. Rows that refer to each other have the same keys."""
    for table in reflected(connection).sorted_tables:
        if connection.execute(select(table)).first() is None:
            connection.execute(insert(table).values({one.name: _value_of(one) for one in table.columns}))


def lines_of(connection: Connection, backend: str) -> list[str]:
    """What a database holds, without the table in which alembic counts."""
    return sorted(f"{backend} {line}" for line in _lines(connection))


def _lines(connection: Connection) -> Iterator[str]:
    found = inspect(connection)
    for table in found.get_table_names():
        if table.endswith("_version"):
            continue
        for column in found.get_columns(table):
            null = "NULL" if column["nullable"] else "NOT NULL"
            yield f"{table}.{column['name']} {column['type']} {null} {column['default'] or ''}".strip()
        yield f"{table} key {found.get_pk_constraint(table)['constrained_columns']}"
        for key in found.get_foreign_keys(table):
            yield f"{table} refers {key['constrained_columns']} {key['referred_table']}"
        for unique in found.get_unique_constraints(table):
            yield f"{table} unique {sorted(unique['column_names'])}"
        for index in found.get_indexes(table):
            where = [str(one) for name, one in index.get("dialect_options", {}).items() if "where" in name]
            yield f"{table} index {index['name']} {index['column_names']} {bool(index['unique'])} {where}"


def reflected(connection: Connection) -> MetaData:
    """Its tables, to write and read rows."""
    metadata = MetaData()
    metadata.reflect(connection)
    return metadata


async def tables_today(service: str, url: str, backend: str) -> list[str]:
    """Of a fresh database at the newest revision."""
    database = Database(url)
    await database.start()
    try:
        revision = await migrate(database, service)
        lines = await database.run(lambda connection: lines_of(connection, backend))
    finally:
        await database.stop()
    return [*lines, f"revision {revision}"]


async def _print() -> None:
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        for service in SERVICES:
            lines = await tables_today(service, f"sqlite:///{folder}/{service}.sqlite", "sqlite")
            lines += await tables_today(service, server.database(), "postgresql")
            for line in sorted(set(lines)):
                print(f"{service} {line}")


if __name__ == "__main__":
    assert PROGRAMS, "Postgres is needed: make setup"
    asyncio.run(_print())
