"""What the queues of a thousand models cost: their durables made, looked at and removed by the process that
provisions, and the memory of the server that holds them.
"""

import asyncio
import time
from collections.abc import Collection

from tests.local_servers import NatsServer

from benchmarks.decisions import resident_mib
from benchmarks.figures import Figure
from benchmarks.options import Options
from benchmarks.stacks import BenchmarkFailed
from event_bus.model_queues import apply_queues
from event_bus.provision import provision, provisioning
from service_kit.groups import BusSettings


async def measure(options: Options) -> list[Figure]:
    """One NATS server, one copy of each stream."""
    count = options.sized(1000, 20)
    models = frozenset(f"model-{number}" for number in range(count))
    server = NatsServer(options.scratch / "nats")
    await asyncio.to_thread(server.start)
    try:
        await provision(server.url)
        empty = resident_mib(server.pid)
        made = await _applied_s(server.url, models, num_created=2 * count)
        full = resident_mib(server.pid)
        looked = await _applied_s(server.url, models)
        removed = await _applied_s(server.url, (), num_removed=2 * count)
    finally:
        await asyncio.to_thread(server.stop)
    note = f"{count:,} models, {2 * count:,} durables"
    return [
        Figure("queues of all models made", "s", (made,), note=note),
        Figure("queues of all models looked at, none to make", "s", (looked,), note=note),
        Figure("queues of all models removed", "s", (removed,), note=note),
        Figure("memory of NATS with these queues", "MiB", (full,), note=f"{note}; {empty:.0f} MiB before"),
    ]


async def _applied_s(
    url: str, models: Collection[str], *, num_created: int = 0, num_removed: int = 0
) -> float:
    """Seconds until the server has the queues of exactly these models."""

    async def listed() -> Collection[str]:
        return models

    async with provisioning(BusSettings(url=url)) as jetstream:
        began = time.perf_counter()
        done = (await apply_queues(jetstream, listed)).done
        took_s = time.perf_counter() - began
    if (len(done.created), len(done.removed)) != (num_created, num_removed):
        raise BenchmarkFailed(f"{len(done.created)} queues were made and {len(done.removed)} removed")
    return took_s
