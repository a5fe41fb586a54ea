"""Facts per second from the outbox of a service to NATS: rows of a SQLite file, published by the relay in
batches, each confirmed and marked, while nothing else runs.
"""

import asyncio
import time
from typing import Final

from sqlalchemy import Connection, MetaData, func, select
from tests.local_servers import NatsServer

from benchmarks.decisions import MODEL, episode_of
from benchmarks.figures import Figure, Limit
from benchmarks.options import Options
from benchmarks.stacks import BenchmarkFailed
from event_bus import BusSettings, EventBus
from event_bus.provision import provision
from sql_store import Database, OutboxRelay, enqueue, outbox_table
from upcycle.api.taskset.v1.events_pb2 import EpisodeCancelled

TARGET_RATE: Final = 2000.0
_METADATA: Final = MetaData()
_OUTBOX: Final = outbox_table(_METADATA)
_PUBLISHED_S: Final = 300.0


async def measure(options: Options) -> list[Figure]:
    """One NATS server, one copy of each stream, synced to disk as in production."""
    count = options.sized(20_000, 500)
    server = NatsServer(options.scratch / "nats")
    await asyncio.to_thread(server.start)
    try:
        await provision(server.url)
        rates = [await _rate(options, server, repeat, count) for repeat in range(options.repeats(3))]
    finally:
        await asyncio.to_thread(server.stop)
    limit = Limit(TARGET_RATE, " facts/s", at_most=False)
    return [Figure("facts from the outbox to NATS", "facts/s", tuple(rates), limit=limit)]


async def _rate(options: Options, server: NatsServer, repeat: int, count: int) -> float:
    db = Database(f"sqlite:///{options.scratch}/{repeat}.sqlite")
    bus = EventBus(BusSettings(url=server.url), client_name="benchmark")
    relay = OutboxRelay(db, bus)
    await db.start()
    await db.run(lambda connection: _METADATA.create_all(connection))
    await db.run(lambda connection: _fill(connection, range(repeat * count, (repeat + 1) * count)))
    await bus.start()
    began = time.perf_counter()
    await relay.start()
    try:
        async with asyncio.timeout(_PUBLISHED_S):
            while await db.run(_num_waiting):
                await asyncio.sleep(0.02)
        return count / (time.perf_counter() - began)
    except TimeoutError as error:
        raise BenchmarkFailed(f"{count} facts were not published within {_PUBLISHED_S:g} s") from error
    finally:
        await relay.stop()
        await bus.stop()
        await db.stop()


def _fill(connection: Connection, numbers: range) -> None:
    for number in numbers:
        event = EpisodeCancelled(episode=episode_of(number), reason="benchmark")
        enqueue(connection, event, model=MODEL, event_id=f"benchmark-{number}")


def _num_waiting(connection: Connection) -> int:
    waiting = select(func.count()).select_from(_OUTBOX).where(_OUTBOX.c.published_at.is_(None))
    return int(connection.execute(waiting).scalar_one())
