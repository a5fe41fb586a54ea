"""Builds the scenario runner; the only module that constructs adapters."""

from typing import Final

from event_bus import EventBus
from event_bus.topology import SCENARIO_RUNNER_PLAN
from grpc_edge import GrpcServer, Peer
from scenario_runner.adapters.forked_host import ForkedHost
from scenario_runner.adapters.hosts import Hosts
from scenario_runner.adapters.peers import BusGauge, GrpcRegistry, PeerSurroundings
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.adapters.sql_book import SqlEpisodeBook
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.adapters.zygotes import ZygoteOptions
from scenario_runner.handlers import FleetLoop, PlannerLoop
from scenario_runner.ports import Patience
from scenario_runner.servicer.environments import EnvironmentServicer
from scenario_runner.servicer.tasksets import TasksetServicer
from scenario_runner.settings import ScenarioRunnerSettings
from scenario_runner.usecases.claiming import ClaimTasks
from scenario_runner.usecases.explaining import ExplainRun
from scenario_runner.usecases.leases import LeaseRules, Leases
from scenario_runner.usecases.planning import PlanRules
from scenario_runner.usecases.registering import RegisterTaskset, SourceRules, Tasksets
from scenario_runner.usecases.submitting import Runs, SubmitRun
from service_kit import Service, Worker, new_id, run_main, utc_now
from sql_store import Database, OutboxRelay, migrate
from upcycle.api.environment.v1.service_pb2_grpc import add_EnvironmentServiceServicer_to_server
from upcycle.api.taskset.v1.service_pb2_grpc import add_TasksetServiceServicer_to_server

NAME: Final = "scenario_runner"
_IDEMPOTENT: Final = ("GetModel", "GetCheckpoint")


class Tables:
    """The database as a component: opened, and brought to this program's version."""

    name = "sql"

    def __init__(self, database: Database) -> None:
        self._database = database

    async def start(self) -> None:
        """Opens and migrates."""
        await self._database.start()
        await migrate(self._database, NAME)

    async def stop(self) -> None:
        """Closes."""
        await self._database.stop()

    def ready(self) -> str | None:
        """Open or not."""
        return None if self._database.ready() else "closed"


class Environments:
    """Environment processes as a component: whatever still runs at the end is ended."""

    name = "environments"

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    async def start(self) -> None:
        """Nothing: an environment starts with its first episode, or when its taskset is registered."""

    async def stop(self) -> None:
        """End every environment process."""
        await self._hosts.stop()

    def ready(self) -> str | None:
        """A broken environment is a fault of its episodes, not of this service."""
        return None


def build_app(settings: ScenarioRunnerSettings, server: GrpcServer | None = None) -> Service:
    """Wires everything; nothing connects before the service starts. server: where to serve, by default the
    settings' address."""
    service = Service(NAME, settings)
    database = Database(settings.sql.url_for(NAME))
    hosts = build_hosts(settings)
    book = SqlEpisodeBook(database, now=utc_now)
    rules = LeaseRules(settings.max_environments, settings.lease_s)
    leases = Leases(hosts, book, rules, now=utc_now, new_id=new_id)
    server = server or GrpcServer(settings.host, settings.grpc_port)
    service.add(Tables(database))
    service.add(Environments(hosts))
    if settings.role != "fleet":
        _add_planner(service, settings, database, hosts, leases, server)
    if settings.role != "planner":
        service.add(Worker("leases", FleetLoop(leases, book).run))
        servicer = EnvironmentServicer(leases, address=lambda: settings.advertised_address or server.address)
        server.add(add_EnvironmentServiceServicer_to_server, servicer)
    service.add(server)
    return service


def build_hosts(settings: ScenarioRunnerSettings) -> Hosts:
    """Where environments run."""
    patience = Patience(
        start_s=settings.start_timeout_s,
        tool_s=settings.tool_timeout_s,
        grade_s=settings.grade_timeout_s,
        tool_result_bytes=settings.tool_result_bytes,
    )
    limits = Limits(
        address_space_bytes=settings.memory_bytes,
        file_size_bytes=settings.file_bytes,
        cpu_s=settings.cpu_s,
        extra_processes=settings.extra_processes,
        uid=settings.uid,
    )
    options = ZygoteOptions(
        limits,
        max_children=settings.max_environments,
        start_timeout_s=settings.import_timeout_s,
        fork_timeout_s=settings.start_timeout_s,
        environment_variables=settings.environment_variables,
    )
    return Hosts(ForkedHost(options, patience), TcpHost(patience))


def _add_planner(
    service: Service,
    settings: ScenarioRunnerSettings,
    database: Database,
    hosts: Hosts,
    leases: Leases,
    server: GrpcServer,
) -> None:
    plan = SqlPlan(database, now=utc_now)
    rules = PlanRules(
        eval_episodes_in_flight=settings.eval_episodes_in_flight,
        ending_grace_s=settings.cancel_grace_s,
        stop_grace_s=settings.stop_grace_s,
    )
    registry = service.add(Peer("registry", settings.peers.registry, idempotent=_IDEMPOTENT))
    trajectories = service.add(Peer("trajectories", settings.peers.trajectories))
    training = service.add(Peer("training", settings.peers.training))
    gauge = service.add(BusGauge(settings.bus))
    loop = PlannerLoop(plan, gauge, rules)
    surroundings = PeerSurroundings(registry, trajectories, training, gauge)
    servicer = TasksetServicer(
        RegisterTaskset(plan, hosts, SourceRules(settings.environment_roots, settings.allow_tcp)),
        Tasksets(plan),
        SubmitRun(plan, GrpcRegistry(registry), new_id=new_id, wake=loop.wake),
        Runs(plan, wake=loop.wake),
        ExplainRun(plan, surroundings, fleet=lambda: (leases.num_alive, settings.max_environments)),
        ClaimTasks(plan),
    )
    bus = EventBus(settings.bus, client_name=NAME)
    bus.subscribe_batch(SCENARIO_RUNNER_PLAN, loop.on_events)
    service.add(bus)
    service.add(OutboxRelay(database, bus))
    service.add(Worker("planner", loop.run))
    server.add(add_TasksetServiceServicer_to_server, servicer)


def main() -> None:
    """Entry point of `upcycle-scenario-runner`."""
    run_main(NAME, ScenarioRunnerSettings, build_app)


if __name__ == "__main__":
    main()
