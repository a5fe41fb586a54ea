"""A migrated SQLite index on disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sql_store import Database, migrate
from trajectory_store.adapters.sql_index import SqlIndex


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(f"sqlite:///{tmp_path}/store.sqlite")
    await database.start()
    await migrate(database, "trajectory_store")
    yield database
    await database.stop()


@pytest.fixture
def index(db: Database) -> SqlIndex:
    return SqlIndex(db)
