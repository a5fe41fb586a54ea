"""The tables that a service's code names are those that its migrations make."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Connection, MetaData, inspect

from sql_store import MigratedDatabase, UtcDateTime

SERVICES = ("checkpoint_registry", "model_gateway", "scenario_runner", "trajectory_store")


def columns_of_migrations(connection: Connection) -> dict[str, dict[str, type]]:
    """By table, each column with the Python type of its values."""
    found = inspect(connection)
    return {
        table: {column["name"]: column["type"].python_type for column in found.get_columns(table)}
        for table in found.get_table_names()
    }


def type_of_values(column: Column[Any]) -> type:
    """As the database sees it: a decorated type is that of its implementation."""
    kind = column.type
    return kind.impl_instance.python_type if isinstance(kind, UtcDateTime) else kind.python_type


@pytest.mark.parametrize("service", SERVICES)
async def test_every_column_that_the_code_names_is_made_by_a_migration_with_the_same_type(
    service: str, tmp_path: Path
) -> None:
    tables = import_module(f"{service}.adapters.tables")
    metadata: MetaData = getattr(tables, "METADATA", None) or tables.metadata
    database = MigratedDatabase(f"sqlite:///{tmp_path / 'tables.sqlite'}", service)
    await database.start()
    try:
        made = await database.run(columns_of_migrations)
    finally:
        await database.stop()
    named = {
        table.name: {column.name: type_of_values(column) for column in table.columns}
        for table in metadata.tables.values()
    }
    assert len(named) >= 2
    assert {name: made[name] for name in named} == named
    of_libraries = {"audit_entry", "outbox", "sole_holder"}
    assert set(made) - set(named) <= {*of_libraries, f"{service}_version"}
