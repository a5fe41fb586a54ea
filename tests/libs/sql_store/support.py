"""A small table and a bus that only remembers, for the SQL suites."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, insert, select
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusSettings, BusTimings, Encoded, EventBus, PubAck, Stored
from event_bus.provision import provision
from event_bus.topology import TASKS
from sql_store import Database, outbox_table
from upcycle.errors import Unavailable

T = TypeVar("T")
METADATA = MetaData()
NOTES = Table("notes", METADATA, Column("id", Integer, primary_key=True), Column("text", Text, unique=True))
OUTBOX = outbox_table(METADATA)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    """A database with the tables of this module."""
    db = Database(url)
    await db.start()
    await db.run(lambda connection: METADATA.create_all(connection))
    try:
        yield db
    finally:
        await db.stop()


@asynccontextmanager
async def opened_bus(server: NatsServer) -> AsyncIterator[EventBus]:
    """A provisioned NATS, and a bus on it."""
    await provision(server.url)
    bus = EventBus(BusSettings(url=server.url), client_name="t", timings=BusTimings(drain_s=1, close_s=1))
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


def write(text: str) -> Callable[[Connection], None]:
    def note(connection: Connection) -> None:
        connection.execute(insert(NOTES).values(text=text))

    return note


def texts(connection: Connection) -> list[str]:
    return list(connection.execute(select(NOTES.c.text).order_by(NOTES.c.id)).scalars())


class Remembering:
    """Takes the place of an EventBus where only the order and the refusals matter."""

    def __init__(self) -> None:
        self.published: list[tuple[str, str, str]] = []
        self.down, self.num_refused = False, 0
        self.refuses: dict[str, Exception] = {}
        self.batches: list[int] = []

    async def publish_encoded(
        self, message: Encoded, stream: str, subject: str, *, event_id: str, again: bool = False
    ) -> PubAck:
        kind = "command" if stream == TASKS else "fact"
        if self.down:
            self.num_refused += 1
            raise Unavailable("down")
        if event_id in self.refuses:
            raise self.refuses[event_id]
        self.published.append((kind, subject, event_id))
        return PubAck("s", len(self.published), duplicate=False)

    async def publish_together(self, stored: Sequence[Stored], stream: str) -> None:
        """All or none, as the server does."""
        if self.down or (refused := [one for one in stored if one.event_id in self.refuses]):
            self.num_refused += 1
            raise Unavailable("down") if self.down else self.refuses[refused[0].event_id]
        for one in stored:
            await self.publish_encoded(one.message, stream, one.subject, event_id=one.event_id)
        self.batches.append(len(stored))

    def ids(self, kind: str) -> list[str]:
        return [event_id for what, _, event_id in self.published if what == kind]


async def eventually(
    db: Database, read: Callable[[Connection], T], expected: T, *, timeout_s: float = 60.0
) -> None:
    """Wait until a query answers what is expected."""

    async def answered() -> bool:
        return await db.run(read) == expected

    await until(answered, f"the answer {expected}", timeout_s=timeout_s)
