"""Commands that no process can begin yet, on a real server: they wait without a slot, and circle never."""

import asyncio
import time
from dataclasses import replace

import pytest
from nats.js.api import ConsumerInfo
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import FAST, command_spec, eyes_on, requested
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusSettings, CurrentDelivery, EventBus, EventRouter, Needs
from event_bus.model_queues import provision_queues
from event_bus.provision import provision
from event_bus.topology import ATTEMPTS, COMMAND_SUBJECTS, EVENT_SUBJECTS, STREAMS, TASKS, Topology
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested

QUEUE = command_spec("train", ack_wait_s=5.0, max_ack_pending=500)
TOPOLOGY = Topology(STREAMS, (), EVENT_SUBJECTS, COMMAND_SUBJECTS, queues=(QUEUE,))
MODEL = "m"


@pytest.fixture
async def server(nats_server: NatsFactory) -> NatsServer:
    server = nats_server()
    await provision(server.url, topology=TOPOLOGY)
    await provision_queues(server.url, [MODEL, "x", "y"], TOPOLOGY)
    return server


class Worker:
    """A process that can begin commands whose id begins with a word in `able`."""

    def __init__(self, server: NatsServer, *able: str, slots: int = 2) -> None:
        self.able = set(able)
        self.began: list[str] = []
        self.busy = asyncio.Event()
        self.busy.set()
        self.bus = EventBus(
            BusSettings(url=server.url), client_name="worker", topology=TOPOLOGY, timings=FAST
        )
        router = EventRouter(TOPOLOGY)
        needs = Needs(lambda event: event.episode.episode_id.partition("-")[0], self._can)
        self.queue = router.queue(QUEUE, slots=slots, needs=needs)

        @self.queue
        async def on_command(event: EpisodeRequested, delivery: CurrentDelivery) -> None:
            self.began.append(event.episode.episode_id)
            await self.busy.wait()

        self.bus.include_router(router)

    async def _can(self, need: object) -> bool:
        return need in self.able

    async def __aenter__(self) -> "Worker":
        await self.bus.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.busy.set()
        await self.bus.stop()

    async def ask(self, word: str, count: int, model: str = MODEL) -> None:
        ids = [f"{word}-{model}-{number}" for number in range(count)]
        await asyncio.gather(
            *(self.bus.command(requested(one), pool="train", model=model, event_id=one) for one in ids)
        )


async def state_of(server: NatsServer, model: str = MODEL) -> ConsumerInfo:
    async with eyes_on(server) as eyes:
        found: ConsumerInfo = await eyes.jetstream.consumer_info(TASKS, QUEUE.of_model(model).durable)
        return found


async def num_notes(server: NatsServer) -> int:
    async with eyes_on(server) as eyes:
        return sum(QUEUE.of_model(MODEL).durable in note.subject for note in await eyes.stored(ATTEMPTS))


async def test_what_cannot_begin_holds_no_slot_and_is_not_handed_back_in_circles(server: NatsServer) -> None:
    async with Worker(server, "plays") as worker:
        worker.queue.follow([MODEL])
        await worker.ask("waits", 300)
        await worker.ask("plays", 20)
        await until(lambda: len(worker.began) == 20)
        assert {name.partition("-")[0] for name in worker.began} == {"plays"}
        await asyncio.sleep(1.5 * QUEUE.ack_wait_s)
        state = await state_of(server)
        assert (state.num_ack_pending, state.num_pending) == (300, 0)
        assert await num_notes(server) == 0
        worker.able.add("waits")
        await until(lambda: len(set(worker.began)) == 320)
        assert await num_notes(server) == 0


async def test_a_process_that_stops_gives_what_waited_to_another_at_once(server: NatsServer) -> None:
    spec = replace(QUEUE, ack_wait_s=600.0)
    await provision_queues(server.url, [MODEL], replace(TOPOLOGY, queues=(spec,)))
    async with Worker(server) as first:
        first.queue.follow([MODEL])
        await first.ask("waits", 5)
        held = first.queue._held
        assert held is not None
        await until(lambda: held._of_durable.total() == 5)
    assert first.began == []
    async with Worker(server, "waits") as second:
        second.queue.follow([MODEL])
        await until(lambda: len(second.began) == 5)


async def test_a_process_whose_slots_are_busy_keeps_no_command_from_an_idle_one(server: NatsServer) -> None:
    async with Worker(server, "slow", "quick", slots=1) as full, Worker(server, "quick") as idle:
        full.busy.clear()
        full.queue.follow([MODEL, "x", "y"])
        await full.ask("slow", 1)
        await until(lambda: full.began == [f"slow-{MODEL}-0"])
        await full.ask("quick", 1, "x")  # while the full one's requests for x and y are out
        await full.ask("quick", 1, "y")
        await asyncio.sleep(FAST.pull_s)
        idle.queue.follow(["x", "y"])
        await until(lambda: len(idle.began) == 2)
        assert full.began == [f"slow-{MODEL}-0"]


async def test_a_command_delivered_again_to_a_frozen_process_is_begun_once(server: NatsServer) -> None:
    async with Worker(server) as worker:
        worker.queue.follow([MODEL])
        await worker.ask("waits", 5)
        held = worker.queue._held
        assert held is not None
        await until(lambda: held._of_durable.total() == 5)
        for _ in range(2):
            freeze(1.5 * QUEUE.ack_wait_s)
            await asyncio.sleep(2 * FAST.pull_s)
        delivered = (await state_of(server)).delivered
        assert delivered is not None
        assert delivered.consumer_seq > 5, "some were delivered again"
        assert held._of_durable.total() == 5
        worker.able.add("waits")
        await until(lambda: len(set(worker.began)) == 5)
        await until_settled(server)
        assert len(worker.began) == 5, "each is begun once"
        assert held._of_durable.total() == 0


async def until_settled(server: NatsServer) -> None:
    async with asyncio.timeout(30):
        while (state := await state_of(server)).num_ack_pending or state.num_pending:
            await asyncio.sleep(0.1)


def freeze(seconds: float) -> None:
    """As SIGSTOP does: nothing of this process runs."""
    time.sleep(seconds)
