"""What the bus tests share: fast timings, a durable of one's own, and eyes on the server beside the bus."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import nats
from google.protobuf.message import Message
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import RawStreamMsg
from nats.js.errors import NotFoundError
from prometheus_client import REGISTRY
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import (
    BusSettings,
    BusTimings,
    ConsumerSpec,
    CurrentDelivery,
    Delivery,
    EventBus,
    EventHandlers,
    EventRouter,
    Topology,
)
from event_bus.batches import BatchHandler
from event_bus.provision import provision
from event_bus.topology import COMMAND_SUBJECTS, DLQ, EVENT_SUBJECTS, EVENTS, STREAMS, TASKS
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, EpisodeRequested

FAST = BusTimings(
    publish_budget_s=20, connect_s=30, drain_s=10, pull_s=0.5, first_retry_s=0.1, max_retry_s=0.4, close_s=2
)
MODEL = "incident"
T = TypeVar("T")


def failed(detail: str) -> EpisodeFailed:
    """A small fact; `detail` says which."""
    episode = EpisodeIdentity(episode_id=f"e-{detail}", model=MODEL)
    return EpisodeFailed(episode=episode, kind="timeout", detail=detail)


def requested(episode_id: str) -> EpisodeRequested:
    """A small command."""
    return EpisodeRequested(episode=EpisodeIdentity(episode_id=episode_id))


def fact_spec(durable: str = "tested", **changes: Any) -> ConsumerSpec:
    """A durable of facts. Its ack wait is long: a test that the machine paused for a second would get its
    message twice, and count it twice. What waits for silence to be noticed gives its own."""
    settings: dict[str, Any] = {"events": (EpisodeFailed,), "ack_wait_s": 60.0, "max_deliver": 3, **changes}
    return ConsumerSpec(EVENTS, durable, **settings)


def command_spec(pool: str = "train", **changes: Any) -> ConsumerSpec:
    """A durable of commands, with the ack wait of `fact_spec`."""
    settings: dict[str, Any] = {"ack_wait_s": 60.0, "max_deliver": 3, "pools": (pool,), **changes}
    return ConsumerSpec(TASKS, f"worker-{pool}", (EpisodeRequested,), **settings)


def topology(*consumers: ConsumerSpec) -> Topology:
    """The platform's streams and types with these durables."""
    return Topology(STREAMS, consumers, EVENT_SUBJECTS, COMMAND_SUBJECTS)


class Seen:
    """Collects what handlers got."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery[Any]] = []
        self.times: list[float] = []

    @property
    def details(self) -> list[str]:
        return [str(one.message.detail) for one in self.deliveries]

    def note(self, delivery: Delivery[Any]) -> None:
        self.deliveries.append(delivery)
        self.times.append(time.monotonic())

    async def __call__(self, delivery: Delivery[Any]) -> None:
        self.note(delivery)

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


def subscribe(
    bus: EventBus, spec: ConsumerSpec, handler: Callable[[Delivery[Any]], Awaitable[None]], *, slots: int = 1
) -> None:
    """A router with one function that gives each delivery of the durable to `handler`."""
    router = EventRouter()

    @router.subscriber(spec, slots=slots)
    async def on_event(event: Message, delivery: CurrentDelivery) -> None:
        assert event == delivery.message
        await handler(delivery)

    bus.include_router(router)


def subscribe_batch(
    bus: EventBus,
    spec: ConsumerSpec,
    handler: BatchHandler,
    *,
    batch_size: int = 100,
    is_ours: Callable[[], bool] | None = None,
) -> None:
    """A router with one projection."""
    router, handlers = EventRouter(), EventHandlers[None]()
    for event in spec.events:
        handlers(event)(lambda _, __: None)

    @router.projection(spec, handlers, batch_size=batch_size, is_ours=is_ours)
    async def fold(batch: Sequence[tuple[Delivery[Any], None]]) -> None:
        await handler([delivery for delivery, _ in batch])

    bus.include_router(router)


def subscribe_ephemeral(
    bus: EventBus,
    events: Sequence[type[Message]],
    handler: Callable[[Delivery[Any]], Awaitable[None]],
    **options: Any,
) -> None:
    """A router with one ephemeral reader."""
    router = EventRouter()
    handlers = router.ephemeral(**options)
    for event in events:
        handlers(event)(lambda _, delivery: handler(delivery))
    bus.include_router(router)


async def in_time(work: Awaitable[T], *, within_s: float = 30.0) -> T:
    """Wait for what must end by itself; fails the test when it does not."""
    async with asyncio.timeout(within_s):
        return await work


def publish_retries() -> float:
    """Publish attempts after the first, of `failed` facts, in this process."""
    subject = "up.{tenant}.evt.episode.failed.{model}"
    return REGISTRY.get_sample_value("upcycle_bus_publish_retries_total", {"subject": subject}) or 0.0


Setup = Callable[[EventBus], None]


@asynccontextmanager
async def running(
    server: NatsServer, *consumers: ConsumerSpec, setup: Setup = lambda bus: None, timings: BusTimings = FAST
) -> AsyncIterator[EventBus]:
    """A started bus on a provisioned server; stopped at the end."""
    applied = topology(*consumers)
    await provision(server.url, topology=applied)
    bus = EventBus(BusSettings(url=server.url), client_name="test", topology=applied, timings=timings)
    setup(bus)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


@dataclass(frozen=True)
class Stored:
    """A message as the server holds it."""

    subject: str
    data: bytes
    headers: dict[str, str]


class Eyes:
    """A plain client that looks at, and tampers with, the server."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.jetstream = client.jetstream()

    async def stored(self, stream: str) -> list[Stored]:
        """Everything in a stream, oldest first."""
        state = (await self.jetstream.stream_info(stream)).state
        found = []
        for sequence in range(max(1, state.first_seq), state.last_seq + 1):
            try:
                raw = await self._message(stream, sequence)
            except NotFoundError:
                continue
            found.append(Stored(raw.subject or "", raw.data or b"", dict(raw.headers or {})))
        return found

    async def _message(self, stream: str, sequence: int) -> RawStreamMsg:
        """A request that was under way when a connection ended is never answered: it is repeated."""
        for _ in range(6):
            with suppress(NatsTimeout):
                return await self.jetstream.get_msg(stream, sequence)
        return await self.jetstream.get_msg(stream, sequence)

    async def dead_letters(self) -> list[Stored]:
        return await self.stored(DLQ)

    async def pending(self, spec: ConsumerSpec) -> tuple[int, int]:
        """(not yet delivered, delivered and unanswered) of a durable."""
        info = await self.jetstream.consumer_info(spec.stream, spec.durable)
        return info.num_pending or 0, info.num_ack_pending or 0

    async def settled(self, spec: ConsumerSpec, *, left: int = 0) -> None:
        """Wait until a durable has `left` messages to deliver and nothing unanswered."""

        async def is_settled() -> bool:
            return await self.pending(spec) == (left, 0)

        await until(is_settled, f"{spec.durable} settling")


@asynccontextmanager
async def eyes_on(server: NatsServer) -> AsyncIterator[Eyes]:
    """A plain client on the server."""
    client = await nats.connect(server.url, max_reconnect_attempts=-1)
    try:
        yield Eyes(client)
    finally:
        await client.close()


class Worker:
    """A service process of `worker.py`, with what it said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    @asynccontextmanager
    async def started(cls, url: str, mode: str) -> AsyncIterator["Worker"]:
        """Up and subscribed; killed at the end if it still runs."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.libs.event_bus.worker",
            url,
            mode,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        worker = cls(process)
        try:
            await worker.says("up", within_s=60)  # a machine at work starts processes slowly
            yield worker
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await worker._reading

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    async def says(self, line: str, *, within_s: float = 30.0) -> None:
        """Wait until it printed that line."""
        await until(lambda: line in self.lines, timeout_s=within_s)

    async def exit_status(self, *, within_s: float) -> int:
        """Wait until it ended."""
        async with asyncio.timeout(within_s):
            status = await self.process.wait()
            await self._reading
        return status
