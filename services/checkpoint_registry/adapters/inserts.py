"""Inserts that a repeat, or another replica, may have done before."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_once(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """False: a row with the same key, or the same unique value, is there."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table).values(**values).on_conflict_do_nothing().returning(table.c.tenant)
    return connection.execute(statement).first() is not None
