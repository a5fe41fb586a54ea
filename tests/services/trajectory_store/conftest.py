"""Migrated indexes: on every database of this machine, or on a SQLite file whose pages a test may count."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sql_store import Database, migrate
from trajectory_store.adapters.sql_index import SqlIndex


@pytest.fixture
async def db(sql_url: str) -> AsyncIterator[Database]:
    database = Database(sql_url)
    await database.start()
    await migrate(database, "trajectory_store")
    yield database
    await database.stop()


@pytest.fixture
def index(db: Database) -> SqlIndex:
    return SqlIndex(db)


@pytest.fixture
async def sqlite_db(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/store.sqlite")
    await database.start()
    await migrate(database, "trajectory_store")
    yield database
    await database.stop()
