"""`upcycle-provision --watch` between a real NATS and a registry whose models come and go."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from nats.js.errors import NotFoundError
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import eyes_on
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import UPCYCLE, BusSettings
from event_bus.connection import filters_of
from event_bus.provision import provision
from event_bus.provision_command import main
from event_bus.provision_watch import build_app
from event_bus.settings import ProvisionSettings
from event_bus.topology import CHECKPOINT_REGISTRY, TASKS
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from service_kit.groups import PeerSettings
from service_kit.service import Service
from upcycle.api.registry.v1.registry_pb2 import Model
from upcycle.api.registry.v1.service_pb2 import ListModelsResponse
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.api.taskset.v1.events_pb2 import RunSubmitted


class RegistryOfModels(RegistryServiceServicer):
    """Lists `models`."""

    def __init__(self) -> None:
        self.models: list[str] = []

    async def ListModels(self, request: Any, context: Any) -> ListModelsResponse:
        return ListModelsResponse(models=[Model(model=model) for model in self.models])


class Watched:
    """A server, a registry, and the process between them."""

    def __init__(self, server: NatsServer, registry: RegistryOfModels, edge: GrpcServer) -> None:
        self.server = server
        self.registry = registry
        self.edge = edge
        self.process: Service | None = None

    @property
    def env(self) -> dict[str, str]:
        return {"UPCYCLE_BUS_URL": self.server.url, "UPCYCLE_PEERS_REGISTRY": self.edge.address}

    async def start(self) -> Service:
        self.process = build_app(
            ProvisionSettings(
                http_port=0,
                poll_s=0.05,
                repair_s=0.3,
                bus=BusSettings(url=self.server.url),
                peers=PeerSettings(registry=self.edge.address),
            )
        )
        await self.process.start()
        return self.process

    async def queues(self) -> list[str]:
        async with eyes_on(self.server) as eyes:
            try:
                return sorted(str(info.name) for info in await eyes.jetstream.consumers_info(TASKS))
            except NotFoundError:
                return []

    async def has_queues_of(self, *models: str) -> bool:
        return await self.queues() == sorted(
            spec.of_model(model).durable for spec in UPCYCLE.queues for model in models
        )


@pytest.fixture
async def watched(nats_server: NatsFactory, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Watched]:
    caplog.set_level("INFO")  # as the process runs: a record that cannot be made ended it
    registry = RegistryOfModels()  # type: ignore[abstract]
    edge = GrpcServer("127.0.0.1", 0, OPEN).add(add_RegistryServiceServicer_to_server, registry)
    await edge.start()
    made = Watched(nats_server(), registry, edge)
    yield made
    if made.process is not None:
        assert await made.process.stop()
    await edge.stop()


async def test_queues_follow_the_models_of_the_registry(watched: Watched) -> None:
    process = await watched.start()
    await until(lambda: process.readiness().reasons == {})
    assert await watched.queues() == []
    watched.registry.models = ["a", "b"]
    await until(lambda: watched.has_queues_of("a", "b"))
    watched.registry.models = ["b", "c"]
    await until(lambda: watched.has_queues_of("b", "c"))


async def test_what_somebody_deleted_is_made_again(watched: Watched) -> None:
    watched.registry.models = ["a"]
    await watched.start()
    await until(lambda: watched.has_queues_of("a"))
    async with eyes_on(watched.server) as eyes:
        await eyes.jetstream.delete_stream(TASKS)
    await until(lambda: watched.has_queues_of("a"))


async def test_what_a_newer_version_provisioned_is_not_taken_back(watched: Watched) -> None:
    """An older process beside a newer one: a filter that it narrowed would lose facts of a new type."""
    newer = replace(CHECKPOINT_REGISTRY, events=(*CHECKPOINT_REGISTRY.events, RunSubmitted))
    await provision(watched.server.url, topology=replace(UPCYCLE, consumers=(newer,)))
    process = await watched.start()
    await until(lambda: process.readiness().reasons == {})
    async with eyes_on(watched.server) as eyes:
        config = (await eyes.jetstream.consumer_info(newer.stream, newer.durable)).config
    assert filters_of(config) == set(UPCYCLE.filters_of(newer))


async def test_a_registry_that_is_away_is_named_and_costs_no_queue(watched: Watched) -> None:
    watched.registry.models = ["a"]
    process = await watched.start()
    await until(lambda: watched.has_queues_of("a"))
    await watched.edge.stop()
    await until(lambda: "list models" in process.readiness().reasons.get("provision", ""))
    assert await watched.has_queues_of("a")


async def test_a_registry_that_lost_its_models_costs_no_command(watched: Watched) -> None:
    watched.registry.models = ["a"]
    process = await watched.start()
    await until(lambda: watched.has_queues_of("a"))
    train = UPCYCLE.queues[0].of_model("a")
    async with eyes_on(watched.server) as eyes:
        await eyes.jetstream.publish("up.default.task.episode.train.a", b"{}", stream=TASKS)
        watched.registry.models = []
        await until(lambda: _is_only(watched, train.durable))
        assert (await eyes.jetstream.stream_info(TASKS)).state.messages == 1
    await until(lambda: process.readiness().reasons == {})


async def _is_only(watched: Watched, durable: str) -> bool:
    return await watched.queues() == [durable]


@pytest.mark.parametrize(
    "wrong", [["--replicas", "0"], ["--replicas", "x"], ["--remove-model"], ["--wtach"], ["--watch", "now"]]
)
def test_arguments_that_say_nothing_are_refused(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["upcycle-provision", *wrong])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code not in (0, None)


def test_no_model_is_removed_while_the_registry_is_away(
    nats_server: NatsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["upcycle-provision", "--remove-model", "a"])
    monkeypatch.setenv("UPCYCLE_BUS_URL", nats_server().url)
    monkeypatch.setenv("UPCYCLE_PEERS_REGISTRY", "127.0.0.1:1")
    with pytest.raises(SystemExit, match="list models"):
        main()
