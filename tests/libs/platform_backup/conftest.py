"""A platform of real servers without services: streams with readers half way, tables with rows, objects."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerInfo
from pydantic import SecretStr
from sqlalchemy import Connection, MetaData, select, text
from tests.conftest import NatsFactory
from tests.local_servers import NatsServer, S3Server
from tests.postgres import PostgresServer
from tests.services.released_tables import fill

from blob_store import S3BlobStore
from event_bus.provision import provision
from event_bus.topology import CHECKPOINT_REGISTRY, EVENTS, TRAJECTORY_STORE_LEDGER
from identities import subjects
from platform_backup.objects import opened
from platform_backup.places import Places
from service_kit.groups import BusSettings, S3Settings
from sql_store.database import Database
from sql_store.logins import SERVICES
from sql_store.migrations import migrate

OBJECTS = {
    "default/bodies/one": b"turns",
    "default/bodies/two": b"turns",
    "default/empty": b"",
    "default/weights/with space+ü": b"w" * 300_000,
}
AWKWARD = "tab\tnewline\nbackslash\\ quote' and \\N"
FACT = subjects.fact("run.submitted", "m")


def decision(about: str) -> str:
    """Where the grade of an episode is decided."""
    return subjects.decision("outcome", "m", about, "graded", "default")


@dataclass(frozen=True, slots=True)
class Site:
    """A platform, and the server program under its bus."""

    places: Places
    nats: NatsServer

    async def fill(self) -> None:
        """What a used platform holds."""
        await provision(self.places.bus)
        for service, url in self.places.databases.items():
            await _fill_tables(service, url)
        async with store_of(self.places) as store:
            for key, body in OBJECTS.items():
                await store.put(key, body)
        client = await nats.connect(self.places.bus.url)
        try:
            await _fill_streams(client)
        finally:
            await client.close()

    async def content(self) -> dict[str, Any]:
        """Everything that a restored platform must have in common with it."""
        client = await nats.connect(self.places.bus.url)
        try:
            found: dict[str, Any] = {"streams": await _streams(client)}
        finally:
            await client.close()
        found["tables"] = {service: await _rows(url) for service, url in self.places.databases.items()}
        async with store_of(self.places) as store:
            keys = [key for key in await store.list("") if not key.startswith(".")]
            found["objects"] = {key: await store.read(key) for key in keys}
        return found


def store_of(places: Places) -> AbstractAsyncContextManager[S3BlobStore]:
    """The bucket of a platform."""
    return opened(places.s3)


async def _fill_tables(service: str, url: SecretStr) -> None:
    database = Database(url)
    await database.start()
    await migrate(database, service)

    def insert(connection: Connection) -> None:
        metadata = MetaData()
        metadata.reflect(connection)
        if "outbox" in metadata.tables:
            row = {"stream": EVENTS, "subject": FACT, "schema": "s", "payload": AWKWARD, "trace": "{}"}
            for number in range(3):
                connection.execute(metadata.tables["outbox"].insert(), {**row, "event_id": f"e{number}"})
            connection.execute(text("DELETE FROM outbox WHERE event_id = 'e2'"))
        fill(connection)

    await database.run(insert)
    await database.stop()


async def _rows(url: SecretStr) -> dict[str, list[tuple[Any, ...]]]:
    database = Database(url)
    await database.start()

    def read(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
        metadata = MetaData()
        metadata.reflect(connection)
        return {
            name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for name, table in metadata.tables.items()
        }

    found = await database.read(read)
    await database.stop()
    return found


async def _fill_streams(client: Client) -> None:
    """Five facts of which the ledger read two, the registry none; two decisions, which EVENTS copies."""
    jetstream = client.jetstream()
    for number in range(5):
        await jetstream.publish(FACT, b"{}", headers={"Nats-Msg-Id": f"run.submitted/{number}"})
    for number in range(2):
        await jetstream.publish(decision(f"e{number}"), b"{}")
    reader = await jetstream.pull_subscribe_bind(TRAJECTORY_STORE_LEDGER.durable, EVENTS)
    for message in await reader.fetch(2, timeout=10):
        await message.ack_sync()
    while (await jetstream.stream_info(EVENTS)).state.messages < 7:
        await asyncio.sleep(0.02)
    await jetstream.consumer_info(EVENTS, CHECKPOINT_REGISTRY.durable)


def floor_of(reader: ConsumerInfo) -> int:
    """Everything up to it was acknowledged."""
    return 0 if reader.ack_floor is None else reader.ack_floor.stream_seq


async def _streams(client: Client) -> dict[str, Any]:
    jetstream = client.jetstream()
    found = {}
    for info in await jetstream.streams_info():
        name = str(info.config.name)
        readers = {
            reader.name: (floor_of(reader), reader.num_pending, reader.config.filter_subjects)
            for reader in await jetstream.consumers_info(name)
        }
        state = (max(info.state.first_seq, 1), info.state.last_seq, info.state.messages)
        found[name] = state, readers
    return found


SiteMaker = Callable[..., Awaitable[Site]]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def buckets(s3_server: S3Server) -> dict[str, S3Settings]:
    """Two for all tests: a SeaweedFS has room for few."""
    return {name: s3_server.settings_for(f"backup-{name}") for name in ("old", "new")}


@pytest.fixture
def new_site(
    request: pytest.FixtureRequest, tmp_path: Path, buckets: dict[str, S3Settings], nats_server: NatsFactory
) -> SiteMaker:
    """Makes platforms that hold nothing: `await new_site("old", "sqlite")`."""

    async def make(bucket: str, backend: str = "sqlite") -> Site:
        bus = nats_server()
        folder = tmp_path / f"sql-{next(_numbers)}"
        places = Places.with_sqlite(BusSettings(url=bus.url), buckets[bucket], folder)
        if backend != "sqlite":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            urls = {service: SecretStr(server.database()) for service in SERVICES}
            places = Places(places.bus, places.s3, urls)
        async with store_of(places) as store:
            for key in await store.list(""):
                await store.delete(key)
        return Site(places, bus)

    return make
