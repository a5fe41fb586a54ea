"""The real service on a real bus and a real database; beside it a registry that knows two models."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from tests.local_servers import NatsServer
from tests.services.scenario_runner.fleets import ENVIRONMENTS, Fleet, running_fleet
from tests.services.scenario_runner.planning import PlannerHarness, open_database
from tests.services.scenario_runner.source_runs import SourcesHarness

from blob_store import S3BlobStore
from event_bus import EventBus
from event_bus.model_queues import provision_queues
from event_bus.provision import provision
from grpc_edge import GrpcServer
from grpc_edge.access import OPEN, Access
from identities import objects
from scenario_runner.app import build_app
from scenario_runner.settings import ScenarioRunnerSettings
from service_kit.groups import BusSettings, PeerSettings, S3Settings, SqlSettings
from service_kit.service import Service
from trajectory_body import pack
from upcycle.api.common.v1 import common_pb2
from upcycle.api.environment.v1.service_pb2_grpc import EnvironmentServiceStub
from upcycle.api.registry.v1 import service_pb2 as registry_pb2
from upcycle.api.registry.v1.registry_pb2 import Checkpoint, Model
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
from upcycle.environment import landlock
from upcycle.rpc import connect

MODELS: Final = ("incident", "other")


class KnownModels(RegistryServiceServicer):
    """Knows the models it is given, each with versions 0 to 3 (2 was removed), and what a test adds: engines,
    checkpoints, and by model the taskset of its gate."""

    def __init__(self, *models: str) -> None:
        self.models = models
        self.engines: list[Any] = []
        self.is_away = False
        self.gates: dict[str, str] = {}
        self.checkpoints: list[Checkpoint] = []

    async def ListModels(self, request: Any, context: Any) -> registry_pb2.ListModelsResponse:
        models = [Model(model=name, gate_taskset=self.gates.get(name, "")) for name in self.models]
        return registry_pb2.ListModelsResponse(models=models)

    async def ListCheckpoints(self, request: Any, context: Any) -> registry_pb2.ListCheckpointsResponse:
        if self.is_away:
            await context.abort(grpc.StatusCode.INTERNAL, "the registry is not well")
        mine = [one for one in self.checkpoints if one.model == request.model]
        return registry_pb2.ListCheckpointsResponse(checkpoints=mine)

    async def GetModel(self, request: Any, context: Any) -> registry_pb2.GetModelResponse:
        if self.is_away:
            await context.abort(grpc.StatusCode.INTERNAL, "the registry is not well")
        if request.model not in self.models:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no model {request.model!r}")
        return registry_pb2.GetModelResponse()

    async def GetVersion(self, request: Any, context: Any) -> registry_pb2.GetVersionResponse:
        if request.version == 2:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "version 2 was removed")
        if request.version > 3:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no version {request.version}")
        return registry_pb2.GetVersionResponse()

    async def ListEngines(self, request: Any, context: Any) -> registry_pb2.ListEnginesResponse:
        return registry_pb2.ListEnginesResponse(engines=self.engines)


class Runner:
    """A running scenario_runner with its clients."""

    def __init__(
        self, service: Service, bus: EventBus, registry: KnownModels, server: NatsServer, bodies: S3BlobStore
    ) -> None:
        self.service = service
        self.bus = bus
        self.registry = registry
        self.nats = server
        self.bodies = bodies
        self.address = ""
        self.tasksets: Any = None
        self.environments: Any = None

    async def store(self, body: TrajectoryBody) -> common_pb2.BlobRef:
        """Store a trajectory as the sampler does."""
        key = objects.trajectory_body(body.episode.run_id, body.episode.episode_id)
        ref = await self.bodies.put(key, pack(body))
        return common_pb2.BlobRef(key=ref.key, sha256=ref.sha256, size_bytes=ref.size_bytes)


Start = Callable[..., Awaitable[Runner]]


@pytest.fixture(scope="session", autouse=True)
def traced() -> None:
    """Spans exist, as in the service's own process."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A bus of its own: the planner's durable must not hold what another test left behind."""
    with NatsServer(tmp_path / "nats") as server:
        asyncio.run(provision(server.url))
        asyncio.run(provision_queues(server.url, MODELS))
        yield server


@pytest.fixture
async def planner(sql_url: str) -> AsyncIterator[PlannerHarness]:
    """A plan in a database: SQLite, and Postgres where this machine has it."""
    database = await open_database(sql_url)
    yield PlannerHarness(database)
    await database.stop()


@pytest.fixture
async def sources(planner: PlannerHarness) -> SourcesHarness:
    """A plan with one taskset of six tasks."""
    made = SourcesHarness(planner)
    await made.register()
    return made


@pytest.fixture
async def start_runner(nats: NatsServer, s3_settings: S3Settings, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts runners on one bus and one database, one after the other or with other settings."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Runner:
            # Only the methods that the runner calls; the generated base answers UNIMPLEMENTED to the others.
            registry = KnownModels(*MODELS)  # type: ignore[abstract]
            registry_server = GrpcServer("127.0.0.1", 0, OPEN).add(
                add_RegistryServiceServicer_to_server, registry
            )
            await registry_server.start()
            stack.push_async_callback(registry_server.stop)
            peers = PeerSettings(
                registry=registry_server.address, trajectories="127.0.0.1:1", training="127.0.0.1:1"
            )
            given: dict[str, Any] = {
                "grpc_port": 0,
                "http_port": 0,
                "environment_roots": (ENVIRONMENTS, tmp_path),
                "cell": "best_effort" if landlock.lacking() else "enforced",  # what this kernel can
                "bus": BusSettings(url=nats.url),
                "s3": s3_settings,
                "sql": SqlSettings(data_dir=tmp_path / "sql"),
                "peers": peers,
            }
            return await _run(ScenarioRunnerSettings(**{**given, **settings}), registry, nats, stack)

        yield start


@pytest.fixture
async def runner(start_runner: Start) -> Runner:
    """One running scenario_runner."""
    return await start_runner()


async def _run(
    settings: ScenarioRunnerSettings, registry: KnownModels, nats: NatsServer, stack: AsyncExitStack
) -> Runner:
    server = GrpcServer("127.0.0.1", 0, Access.of(settings.access))
    service = build_app(settings, server)
    stack.push_async_callback(service.stop)
    await service.start()
    operator_key = next(iter(settings.access.operator_keys), None)
    as_operator = connect(server.address, default_timeout_s=60, api_key=operator_key)
    stack.push_async_callback(as_operator.close)
    as_service = connect(server.address, default_timeout_s=60, api_key=settings.access.sent)
    stack.push_async_callback(as_service.close)
    bus = EventBus(settings.bus, client_name="test")
    await bus.start()
    stack.push_async_callback(bus.stop)
    bodies = S3BlobStore(settings.s3)
    stack.push_async_callback(bodies.stop)
    runner = Runner(service, bus, registry, nats, bodies)
    runner.address = server.address
    runner.tasksets = TasksetServiceStub(as_operator)
    runner.environments = EnvironmentServiceStub(as_service)
    return runner


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """Environments in real processes, which may note in the test's folder what they did."""
    async with running_fleet(tmp_path) as running:
        yield running
