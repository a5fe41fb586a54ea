"""Migrated indexes: on every database of this machine, or on a SQLite file whose pages a test may count."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conftest import NatsFactory
from tests.services.trajectory_store.running_store import Store, running

from event_bus.provision import provision
from service_kit.groups import S3Settings
from sql_store import Database, MigratedDatabase
from trajectory_store.adapters.sql_index import SqlIndex


@pytest.fixture
async def db(sql_url: str) -> AsyncIterator[Database]:
    database = MigratedDatabase(sql_url, "trajectory_store")
    await database.start()
    yield database
    await database.stop()


@pytest.fixture
def index(db: Database) -> SqlIndex:
    return SqlIndex(db)


@pytest.fixture
async def sqlite_db(tmp_path: Path) -> AsyncIterator[Database]:
    database = MigratedDatabase(f"sqlite:///{tmp_path}/store.sqlite", "trajectory_store")
    await database.start()
    yield database
    await database.stop()


@pytest.fixture
async def store(nats_server: NatsFactory, s3_settings: S3Settings, tmp_path: Path) -> AsyncIterator[Store]:
    server = nats_server()
    await provision(server.url)
    async with running(server.url, s3_settings, tmp_path) as started:
        yield started
