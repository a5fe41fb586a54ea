"""A durable per model on a real server: fair shares of slots, models that come and go, commands that stay."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import FAST, command_spec, eyes_on, requested
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusSettings, CurrentDelivery, EventBus, EventRouter, ProvisionRefused, QueueSubscriber
from event_bus.model_queues import apply_queues, provision_queues, remove_model
from event_bus.provision import provision, provisioning
from event_bus.topology import ATTEMPTS, COMMAND_SUBJECTS, EVENT_SUBJECTS, STREAMS, TASKS, Topology
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested

QUEUE = command_spec("train", ack_wait_s=5.0)
TOPOLOGY = Topology(STREAMS, (), EVENT_SUBJECTS, COMMAND_SUBJECTS, queues=(QUEUE,))


@pytest.fixture
async def server(nats_server: NatsFactory) -> NatsServer:
    server = nats_server()
    await provision(server.url, topology=TOPOLOGY)
    return server


class Worker:
    """A process with `slots` for the queue; notes which model's command it began, in order."""

    def __init__(self, server: NatsServer, *, slots: int = 1) -> None:
        self.began: list[str] = []
        self.fails = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.bus = EventBus(
            BusSettings(url=server.url), client_name="worker", topology=TOPOLOGY, timings=FAST
        )
        router = EventRouter(TOPOLOGY)
        self.queue: QueueSubscriber = router.queue(QUEUE, slots=slots)

        @self.queue
        async def on_command(event: EpisodeRequested, delivery: CurrentDelivery) -> None:
            self.began.append(delivery.subject.rpartition(".")[2])
            if delivery.failures < self.fails:
                raise ValueError("a bug")
            await self.gate.wait()

        self.bus.include_router(router)

    async def __aenter__(self) -> "Worker":
        await self.bus.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.gate.set()
        await self.bus.stop()

    async def ask(self, model: str, count: int) -> None:
        ids = [f"{model}-{number}" for number in range(count)]
        await asyncio.gather(
            *(self.bus.command(requested(one), pool="train", model=model, event_id=one) for one in ids)
        )


async def durables(server: NatsServer) -> list[str]:
    async with eyes_on(server) as eyes:
        return sorted(str(info.name) for info in await eyes.jetstream.consumers_info(TASKS))


async def test_a_model_with_few_commands_does_not_wait_behind_one_with_many(server: NatsServer) -> None:
    await provision_queues(server.url, ["few", "many"], TOPOLOGY)
    async with Worker(server, slots=1) as worker:
        await worker.ask("many", 200)
        await worker.ask("few", 10)
        worker.queue.follow(["few", "many"])
        await until(lambda: len(worker.began) == 210)
        last_of_few = 209 - worker.began[::-1].index("few")
        # Turns make it about 10; a queue that serves in order of arrival makes it 200.
        assert worker.began[:last_of_few].count("many") <= 50


@pytest.mark.parametrize("slug", [".".join("a" * 32), "Qwen/Qwen3.5-4B"])  # dots are %2E, the slash is %2F
async def test_a_slug_of_dots_or_with_a_slash_is_played_and_its_failures_are_counted(
    server: NatsServer, slug: str
) -> None:
    await provision_queues(server.url, [slug], TOPOLOGY)
    async with Worker(server) as worker:
        worker.fails = 2
        worker.queue.follow([slug])
        await worker.ask(slug, 1)
        await until(lambda: len(worker.began) == 3)
        async with eyes_on(server) as eyes:
            await eyes.settled(QUEUE.of_model(slug))
            assert await eyes.stored(ATTEMPTS)


async def test_a_queue_that_the_server_refuses_costs_no_other_model_its_own(server: NatsServer) -> None:
    async with provisioning(server.url) as jetstream:
        await jetstream.add_consumer(
            TASKS,
            name="in-the-way",
            durable_name="in-the-way",
            filter_subject="up.default.task.episode.train.b",
        )
    with pytest.raises(ProvisionRefused, match="not unique"):
        await provision_queues(server.url, ["a", "b", "c"], TOPOLOGY)
    assert await durables(server) == ["in-the-way", "worker-train_a", "worker-train_c"]


async def test_slots_bound_what_all_models_together_have_in_work(server: NatsServer) -> None:
    models = ["a", "b", "c"]
    await provision_queues(server.url, models, TOPOLOGY)
    async with Worker(server, slots=2) as worker:
        worker.gate.clear()
        for model in models:
            await worker.ask(model, 4)
        worker.queue.follow(models)
        await until(lambda: len(worker.began) == 2)
        async with eyes_on(server) as eyes:
            infos = [await eyes.jetstream.consumer_info(TASKS, QUEUE.of_model(one).durable) for one in models]
            # Each durable hands out one message at most that has no slot yet; with heartbeats it stays there.
            await asyncio.sleep(1.5 * QUEUE.ack_wait_s)
            infos = [await eyes.jetstream.consumer_info(TASKS, QUEUE.of_model(one).durable) for one in models]
        assert len(worker.began) == 2
        assert sum(info.num_ack_pending or 0 for info in infos) <= 2 + len(models) - 1
        assert sum(info.num_redelivered or 0 for info in infos) == 0
        worker.gate.set()
        await until(lambda: len(worker.began) == 12)
    assert sorted(set(worker.began)) == models


async def test_a_model_that_is_not_followed_keeps_its_commands_untouched(server: NatsServer) -> None:
    await provision_queues(server.url, ["a", "b"], TOPOLOGY)
    async with Worker(server) as worker:
        await worker.ask("a", 3)
        await worker.ask("b", 3)
        worker.queue.follow(["a"])
        await until(lambda: worker.began == ["a"] * 3)
        async with eyes_on(server) as eyes:
            await eyes.settled(QUEUE.of_model("b"), left=3)
            left = await eyes.jetstream.consumer_info(TASKS, QUEUE.of_model("b").durable)
        assert left.num_redelivered == 0
        worker.queue.follow(["b"])
        await until(lambda: worker.began == ["a"] * 3 + ["b"] * 3)
        worker.queue.follow(["a", "b"])
        await worker.ask("a", 4)  # three of them are known, one is new
        await until(lambda: len(worker.began) == 7)


async def test_a_command_for_a_model_without_a_queue_is_kept_until_there_is_one(server: NatsServer) -> None:
    async with Worker(server) as worker:
        await worker.ask("early", 1)
        worker.queue.follow(["early"])
        await until(worker.bus.ready)
        name = QUEUE.of_model("early").durable
        assert worker.bus.ready() == f"durables that do not exist, see upcycle-provision --watch: {name}"
        await provision_queues(server.url, ["early"], TOPOLOGY)
        await until(lambda: worker.began == ["early"])
        await until(lambda: worker.bus.ready() is None)


async def test_the_queue_of_a_model_that_went_is_removed_when_nothing_is_left_in_it(
    server: NatsServer,
) -> None:
    await provision_queues(server.url, ["stays", "goes", "a.b/c"], TOPOLOGY)
    assert await durables(server) == ["worker-train_a%2Eb%2Fc", "worker-train_goes", "worker-train_stays"]
    applied = await provision_queues(server.url, ["stays"], TOPOLOGY)
    assert sorted(applied.done.removed) == [f"{TASKS}/worker-train_a%2Eb%2Fc", f"{TASKS}/worker-train_goes"]
    assert await durables(server) == ["worker-train_stays"]


async def test_what_the_queue_of_a_gone_model_holds_is_dropped_by_name_only(server: NatsServer) -> None:
    await provision_queues(server.url, ["stays", "goes"], TOPOLOGY)
    async with Worker(server) as worker:
        for model in ("stays", "goes"):
            await worker.ask(model, 2)
        async with eyes_on(server) as eyes:  # the server counts a command after it has acknowledged it
            await eyes.settled(QUEUE.of_model("goes"), left=2)
        applied = await provision_queues(server.url, ["stays"], TOPOLOGY)
        assert applied.orphaned == {"goes": 2}
        assert await durables(server) == ["worker-train_goes", "worker-train_stays"]
        async with provisioning(server.url) as jetstream:
            await _refused(lambda: remove_model(jetstream, "stays", ["stays"], TOPOLOGY), "stop its runs")
            await _refused(lambda: remove_model(jetstream, "geos", ["stays"], TOPOLOGY), "mean 'goes'")
            assert await remove_model(jetstream, "goes", ["stays"], TOPOLOGY) == 2
        assert await durables(server) == ["worker-train_stays"]
        await provision_queues(server.url, ["stays", "goes"], TOPOLOGY)
        worker.queue.follow(["stays", "goes"])
        await until(lambda: worker.began == ["stays"] * 2)


async def _refused(call: Callable[[], Any], match: str) -> None:
    with pytest.raises(ProvisionRefused, match=match):
        await call()


async def test_the_one_durable_of_earlier_versions_gives_way_and_its_commands_stay(
    server: NatsServer,
) -> None:
    await provision(server.url, topology=replace(TOPOLOGY, consumers=(QUEUE,), queues=()))
    async with Worker(server) as worker:
        await worker.ask("a", 1)
        applied = await provision_queues(server.url, ["a"], TOPOLOGY)
        assert applied.done.removed == [f"{TASKS}/worker-train"]
        worker.queue.follow(["a"])
        await until(lambda: worker.began == ["a"])


async def test_two_processes_that_apply_the_queues_at_once_remove_nothing_of_each_other(
    server: NatsServer,
) -> None:
    """The second reads the list of models after the first made a durable for a model that is new."""
    models = ["old"]

    async def listed() -> Collection[str]:
        return list(models)

    async def listed_after_another_model_came() -> Collection[str]:
        models.append("new")
        async with provisioning(server.url) as other:
            await apply_queues(other, listed, TOPOLOGY)
        return list(models)

    async with provisioning(server.url) as jetstream:
        applied = await apply_queues(jetstream, listed_after_another_model_came, TOPOLOGY)
    assert applied.done.removed == []
    assert await durables(server) == ["worker-train_new", "worker-train_old"]
