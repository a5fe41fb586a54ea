"""A gateway as a process would run it: real NATS, real HTTP, real gRPC to a registry the test dictates."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import grpc
import openai
import pytest
import uvloop
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.services.model_gateway.engine_double import EngineDouble, engine
from tests.support.waiting import until

from event_bus import EventBus
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from identities.entities import checkpoint_id
from model_gateway.app import build_app
from model_gateway.public_http import PublicHttp
from model_gateway.settings import ModelGatewaySettings
from service_kit.groups import BusSettings, PeerSettings, S3Settings, SqlSettings
from service_kit.service import Service
from sql_store import Database
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import events_pb2, registry_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)

KEY = "up_bootstrapkey1_abcdefghijklmnopqrstuvwxyz"
ENGINE_WAIT_S = 60.0
"""So long the gateway of these tests waits for an engine; an answer in half of it did not wait."""


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway's process has."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def clock() -> Clock:
    """At 0."""
    return Clock()


class ServingEngine(Protocol):
    """What a lease says of an engine."""

    @property
    def url(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def held(self) -> frozenset[int]: ...

    @property
    def kind(self) -> str: ...


class RegistryStub(RegistryServiceServicer):
    """Answers what the test put in."""

    def __init__(self) -> None:
        self.models: dict[str, registry_pb2.Model] = {}
        self.leases: dict[str, registry_pb2.EngineLease] = {}
        self.is_away = False
        self.renewals = 0
        self.asked = 0
        """How often engines or models were asked for, also while away."""

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        await self._answer(context)
        return pb.ListModelsResponse(models=self.models.values())

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Any) -> pb.ListEnginesResponse:
        await self._answer(context)
        return pb.ListEnginesResponse(engines=self.leases.values())

    async def GetVersion(self, request: pb.GetVersionRequest, context: Any) -> pb.GetVersionResponse:
        await self._answer(context)
        version = registry_pb2.PublishedVersion(version=request.version, digest=digest(request.version))
        return pb.GetVersionResponse(version=version)

    async def HoldPolicy(self, request: pb.HoldPolicyRequest, context: Any) -> pb.HoldPolicyResponse:
        """As a registry of a version before it."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method HoldPolicy")
        raise AssertionError

    async def _answer(self, context: Any) -> None:
        self.asked += 1
        if self.is_away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the registry is away")

    def head(self, model: str, version: int) -> None:
        self.models[model] = registry_pb2.Model(
            model=model,
            head_version=version,
            head_checkpoint_id=checkpoint_id(model, version),
            head_revision=version + 1,
        )

    def lease(self, double: ServingEngine, name: str = "engine-1", **changes: Any) -> None:
        """As the engine supervisor would renew it now."""
        self.renewals += 1
        values: dict[str, Any] = {
            "engine_id": name,
            "base_url": double.url,
            "model": double.model,
            "channel": common_pb2.CHANNEL_HEAD,
            "version": double.version,
            "digest": digest(double.version),
            "held_versions": sorted(double.held),
            "engine_kind": double.kind,
            "state": registry_pb2.ENGINE_STATE_READY,
        }
        lease = registry_pb2.EngineLease(**(values | changes))
        lease.expires_at.FromSeconds(2_000_000_000 + self.renewals)
        self.leases[name] = lease


def digest(version: int) -> str:
    return f"{version:064x}"


@dataclass
class Gateway:
    """The gateway under test and what surrounds it."""

    service: Service
    settings: ModelGatewaySettings
    registry: RegistryStub
    bus: EventBus
    port: int
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = KEY, **settings: Any) -> openai.AsyncOpenAI:
        values: dict[str, Any] = {"base_url": f"{self.url}/v1", "max_retries": 0, "timeout": 60.0}
        client = openai.AsyncOpenAI(api_key=key, **(values | settings))
        self.clients.append(client)
        return client

    async def promote(self, model: str, version: int) -> None:
        """Head moves, as the registry would say it."""
        self.registry.head(model, version)
        event = events_pb2.CheckpointPromoted(
            checkpoint_id=checkpoint_id(model, version), model=model, version=version, digest=digest(version)
        )
        event.promoted_at.FromDatetime(datetime.now(UTC))
        await self.bus.publish(event, model=model, event_id=f"promoted/{model}/{version}/{self.port}")

    async def usage(self, number: int) -> list[dict[str, Any]]:
        """The first `number` usage rows, waited for."""
        from sqlalchemy import text

        database = Database(self.settings.sql.url_for("model_gateway"))
        try:

            async def enough() -> list[dict[str, Any]] | None:
                rows = await database.run(
                    lambda connection: [
                        dict(row)
                        for row in connection.execute(
                            text("select * from usage order by started_at")
                        ).mappings()
                    ]
                )
                return rows if len(rows) >= number else None

            found: list[dict[str, Any]] = await until(enough, f"{number} usage rows")
            return found
        finally:
            await database.stop()


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """The tracer provider is global and set once per process, here or elsewhere."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    """Spans that end during the test."""
    exporter.clear()
    return exporter


@pytest.fixture
def changes() -> dict[str, Any]:
    """Settings that a test module or a test overrides."""
    return {}


@pytest.fixture
def peers() -> dict[str, Any]:
    """Further services that the gateway asks, by their names in PeerSettings."""
    return {}


@pytest.fixture
async def gateway(
    nats_url: str, s3_settings: S3Settings, tmp_path: Path, changes: dict[str, Any], peers: dict[str, Any]
) -> AsyncIterator[Gateway]:
    """A running gateway whose registry knows nothing yet."""
    # The other rpcs answer UNIMPLEMENTED, which the gateway never sees.
    registry = RegistryStub()  # type: ignore[abstract]
    server = GrpcServer("127.0.0.1", 0, OPEN).add(add_RegistryServiceServicer_to_server, registry)
    await server.start()
    bus = EventBus(BusSettings(url=nats_url), client_name="test")
    await bus.start()
    values: dict[str, Any] = {
        "public_port": 0,
        "bootstrap_key": KEY,
        "poll_s": 0.1,
        "engine_wait_s": ENGINE_WAIT_S,
        "engine_suspect_s": 0.3,
        "drain_s": 30.0,
        "bus": BusSettings(url=nats_url),
        "s3": s3_settings,
        "sql": SqlSettings(data_dir=tmp_path / "sql"),
        "peers": PeerSettings(registry=server.address, **peers),
    }
    settings = ModelGatewaySettings(**(values | changes))
    service = build_app(settings)
    await service.start()
    public = next(part for part in service._components if isinstance(part, PublicHttp))
    running = Gateway(service, settings, registry, bus, public.port)
    try:
        yield running
    finally:
        for client in running.clients:
            await client.close()
        await service.stop()
        await bus.stop()
        await server.stop()


@pytest.fixture
async def served(gateway: Gateway) -> AsyncIterator[EngineDouble]:
    """Model `incident` at v3, served by one engine."""
    async with engine(version=3) as double:
        gateway.registry.head("incident", 3)
        gateway.registry.lease(double)
        yield double
