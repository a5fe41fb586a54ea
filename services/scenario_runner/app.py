"""Builds the scenario runner; the only module that constructs adapters."""

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from blob_store import S3BlobStore
from event_bus import EventBus
from grpc_edge import GrpcServer, Peer
from grpc_edge.audit import AuditServicer
from grpc_edge.key_follower import access_of
from retention import age_of_days
from retention.loop import SweepLoop as RetentionLoop
from retention.references import IDEMPOTENT as ASKED_AGAIN
from retention.references import GrpcReferences
from retention.servicer import ReferenceServicer, RetentionServicer
from retention.up_to_date import UpToDate
from scenario_runner.adapters.bus_outcomes import BusOutcomes
from scenario_runner.adapters.cell import CellRules, lacking
from scenario_runner.adapters.forked_host import FindSecrets, ForkedHost, no_secrets
from scenario_runner.adapters.hosts import Hosts
from scenario_runner.adapters.peers import BusGauge, GrpcLineages, GrpcRegistry, PeerFacts
from scenario_runner.adapters.planned_episodes import SqlPlannedEpisodes
from scenario_runner.adapters.sandbox import Limits
from scenario_runner.adapters.sealing import Sealer
from scenario_runner.adapters.source_store import SourceStore
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.adapters.sql_secrets import SqlSecrets
from scenario_runner.adapters.stored_sessions import StoredSessions
from scenario_runner.adapters.stored_transcripts import ScenarioTranscripts
from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.adapters.zygote_pool import FindSource
from scenario_runner.adapters.zygotes import ZygoteOptions
from scenario_runner.domain.environments import EpisodeTimeouts
from scenario_runner.domain.runs import Prices
from scenario_runner.handlers import READING, plan_router
from scenario_runner.loops import FleetLoop, PlannerLoop, SessionLoop, SweepLoop, TrackLoop
from scenario_runner.servicer.environments import EnvironmentServicer
from scenario_runner.servicer.secrets import SecretServicer
from scenario_runner.servicer.statuses import ENVIRONMENT_STATUSES, TASKSET_STATUSES
from scenario_runner.servicer.tasksets import TasksetServicer, TasksetUseCases
from scenario_runner.settings import ScenarioRunnerSettings
from scenario_runner.usecases.arriving_sessions import TakeSessions
from scenario_runner.usecases.catalog import Tasksets
from scenario_runner.usecases.deploying import DeployEnvironment
from scenario_runner.usecases.explaining import ExplainRun
from scenario_runner.usecases.kept_sources import ReadSource
from scenario_runner.usecases.leases import LeaseRules, Leases
from scenario_runner.usecases.planning import PlanRules
from scenario_runner.usecases.references import FindReferences
from scenario_runner.usecases.registering import RegisterTaskset, SourceRules
from scenario_runner.usecases.retaining import RemoveRuns
from scenario_runner.usecases.retaining_sources import RemoveSources
from scenario_runner.usecases.run_sources import CheckGuidance, KeepSource, SourceChecks
from scenario_runner.usecases.secrets import CheckSecrets, ManageSecrets, SecretValues
from scenario_runner.usecases.submitting import Runs, SubmitLimits, SubmitRun
from scenario_runner.usecases.task_claims import ClaimTasks
from scenario_runner.usecases.tracking import TrackRuns
from service_kit.background import Worker
from service_kit.clock import new_id, utc_now
from service_kit.component import Closing
from service_kit.failing import FailingWork
from service_kit.main import run_main
from service_kit.service import Service
from sql_store import Database, MigratedDatabase, OutboxRelay, SoleHolder
from upcycle.api.audit.v1.service_pb2_grpc import add_AuditServiceServicer_to_server
from upcycle.api.environment.v1.service_pb2_grpc import add_EnvironmentServiceServicer_to_server
from upcycle.api.retention.v1.service_pb2_grpc import (
    add_ReferenceServiceServicer_to_server,
    add_RetentionServiceServicer_to_server,
)
from upcycle.api.secrets.v1.service_pb2_grpc import add_SecretServiceServicer_to_server
from upcycle.api.taskset.v1.events_pb2 import RunSubmitted
from upcycle.api.taskset.v1.service_pb2_grpc import add_TasksetServiceServicer_to_server

log = logging.getLogger(__name__)

NAME: Final = "scenario_runner"
BODY_RETRY_S: Final = 5.0
"""How long a read of a trajectory body is repeated while the object store is unavailable."""
NEVER_OVERTAKEN: Final = (RunSubmitted,)
"""The trainer begins to read a run at its run.submitted: no episode of it may be played, and nothing about it
be decided, before that."""
_SQLITE_ENDS: Final = ("", "-wal", "-shm", "-journal")
_DRAIN_SHARE: Final = 0.75
"""Of the time to stop: what episodes get to end, before the server stops answering them."""
_IDEMPOTENT: Final = ("GetModel", "GetVersion", "ListModels", "ListCheckpoints", *ASKED_AGAIN)


@dataclass(frozen=True, slots=True)
class _Environments:
    """Where they run, their kept sources, the secrets of their MCP servers."""

    hosts: Hosts
    sources: SourceStore
    secrets: SqlSecrets


def build_app(settings: ScenarioRunnerSettings, server: GrpcServer | None = None) -> Service:
    """Wires everything; nothing connects before the service starts. server: where to serve, by default the
    settings' address."""
    service = Service(NAME, settings)
    database = service.add(MigratedDatabase(settings.sql.url_for(NAME), NAME))
    bodies = S3BlobStore(settings.s3, retry_s=BODY_RETRY_S)
    service.add(Closing("s3", bodies.stop))
    sources = SourceStore(bodies)
    secrets = SqlSecrets(database, Sealer(settings.secrets_key_file) if settings.secrets_key_file else None)
    hosts = build_hosts(settings, sources.find, SecretValues(secrets))
    environments = _Environments(hosts, sources, secrets)
    service.add(Closing("environments", hosts.stop))
    episodes = SqlPlannedEpisodes(database, now=utc_now)
    rules = LeaseRules(settings.max_environments, settings.lease_s)
    leases = Leases(hosts, episodes, ScenarioTranscripts(bodies), rules, now=utc_now, new_id=new_id)
    if server is None:
        access = access_of(service, settings.access, settings.peers.registry)
        server = GrpcServer.of(settings, access)
    if settings.role != "fleet":
        _add_planner(service, settings, database, environments, leases, server)
        _add_secrets(server, secrets)
    if settings.role != "planner":
        service.add(Worker("leases", FleetLoop(leases, episodes).run))
        servicer = EnvironmentServicer(leases, address=lambda: settings.advertised_address or server.address)
        server.add(add_EnvironmentServiceServicer_to_server, servicer, ENVIRONMENT_STATUSES)
    service.add(server)
    service.add(Closing("open environments", lambda: leases.drain(_DRAIN_SHARE * settings.drain_s)))
    return service


def _add_secrets(server: GrpcServer, secrets: SqlSecrets) -> None:
    servicer = SecretServicer(ManageSecrets(secrets, now=utc_now))
    server.add(add_SecretServiceServicer_to_server, servicer, TASKSET_STATUSES)


def build_hosts(
    settings: ScenarioRunnerSettings, find_source: FindSource, find_secrets: FindSecrets = no_secrets
) -> Hosts:
    """Where environments run."""
    timeouts = EpisodeTimeouts(
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
        cell=cell_rules(settings),
    )
    forked = ForkedHost(options, timeouts, find_source=find_source, find_secrets=find_secrets)
    return Hosts(forked, TcpHost(timeouts))


def cell_rules(settings: ScenarioRunnerSettings) -> CellRules:
    """Of the operator. Says in the log what this machine cannot hold back."""
    if settings.cell != "off" and (missing := lacking()):
        deployed = "refused" if settings.cell == "enforced" else "played"
        log.warning("cell_incomplete", extra={"missing": ", ".join(missing), "deployed": deployed})
    return CellRules(
        mode=settings.cell,
        files=tuple(map(str, settings.cell_files)),
        folders=tuple(map(str, settings.cell_folders)),
        ports=settings.cell_ports,
        hidden=(*map(str, settings.cell_hidden), *_own_files(settings)),
    )


def _own_files(settings: ScenarioRunnerSettings) -> list[str]:
    """The key of secrets, and its SQLite database; none on a server."""
    key = [str(settings.secrets_key_file)] if settings.secrets_key_file else []
    scheme, _, path = settings.sql.url_for(NAME).partition(":///")
    if scheme != "sqlite":
        return key
    return [*key, str(Path(path).parent), *(f"{path}{end}" for end in _SQLITE_ENDS)]


def _add_planner(
    service: Service,
    settings: ScenarioRunnerSettings,
    database: Database,
    environments: _Environments,
    leases: Leases,
    server: GrpcServer,
) -> None:
    plan = SqlPlan(database, now=utc_now)
    rules = _rules(settings)
    registry = service.add(
        Peer("registry", settings.peers.registry, api_key=settings.access.sent, idempotent=_IDEMPOTENT)
    )
    gauge = BusGauge(settings.bus)
    service.add(Closing("bus gauge", gauge.stop))
    trajectories = service.add(_trajectories(settings))
    peer_facts = _peer_facts(service, settings, registry, trajectories, gauge)
    loop = PlannerLoop(plan, rules)
    bus = EventBus(settings.bus, client_name=NAME)
    sweeps = SweepLoop(plan, gauge, peer_facts, BusOutcomes(bus), rules, now=utc_now)
    _add_bus(service, database, bus, plan, loop)
    recorded = StoredSessions(trajectories, now=utc_now)
    failing = _add_loops(service, loop, sweeps, _session_loop(settings, plan, recorded, loop))
    explain = ExplainRun(
        plan,
        peer_facts,
        fleet=lambda: (leases.num_alive, settings.max_environments),
        bus_alarms=bus.alarms,
        failing=failing,
    )
    submit = _submit(settings, plan, registry, recorded, environments, loop)
    service.add(Worker("tracking", TrackLoop(TrackRuns(plan, submit)).run))
    catalog = _catalog(settings, plan, environments, GrpcLineages(registry))
    servicer = TasksetServicer(catalog, submit, Runs(plan, wake=loop.wake), explain, prices=_prices(settings))
    server.add(add_TasksetServiceServicer_to_server, servicer, TASKSET_STATUSES)
    server.add(add_AuditServiceServicer_to_server, AuditServicer(database), TASKSET_STATUSES)
    up_to_date = UpToDate(NAME, bus.unread, now=utc_now)
    _add_retention(service, settings, plan, registry, environments.sources, server, up_to_date)


def _add_bus(service: Service, database: Database, bus: EventBus, plan: SqlPlan, loop: PlannerLoop) -> None:
    reading = _reading(database, bus)
    bus.include_router(plan_router(plan, reading, wake=loop.wake))
    service.add(Worker("reading", reading.run))
    service.add(bus)
    service.add(OutboxRelay(database, bus, never_overtaken=NEVER_OVERTAKEN))


def _add_loops(
    service: Service, loop: PlannerLoop, sweeps: SweepLoop, sessions: SessionLoop
) -> Callable[[str], list[str]]:
    """Returns what says of a run which of them fails for it, and of what."""
    planning, sweeping, looking = FailingWork(), FailingWork(), FailingWork()
    service.add(Worker("sessions", sessions.run, failing=looking))
    service.add(Worker("planner", loop.run, failing=planning))
    service.add(Worker("sweeps", sweeps.run, failing=sweeping))
    return lambda run_id: [*planning.of(run_id), *sweeping.of(run_id), *looking.of(run_id)]


def _session_loop(
    settings: ScenarioRunnerSettings, plan: SqlPlan, sessions: StoredSessions, loop: PlannerLoop
) -> SessionLoop:
    gather = timedelta(seconds=settings.sessions_gather_s)
    take = TakeSessions(plan, sessions, gather=gather, wake=loop.wake)
    return SessionLoop(take, every_s=settings.sessions_every_s)


def _trajectories(settings: ScenarioRunnerSettings) -> Peer:
    address, key = settings.peers.trajectories, settings.access.sent
    return Peer("trajectories", address, api_key=key, idempotent=("ListTrajectories",))


def _peer_facts(
    service: Service, settings: ScenarioRunnerSettings, registry: Peer, trajectories: Peer, gauge: BusGauge
) -> PeerFacts:
    training = service.add(Peer("training", settings.peers.training, api_key=settings.access.sent))
    return PeerFacts(registry, trajectories, training, gauge)


def _reading(database: Database, bus: EventBus) -> SoleHolder:
    """Which planner reads facts: the only one, where the database is a file of this process; else one of
    those that reach the bus."""
    is_alone = database.dialect == "sqlite"
    return SoleHolder(database, READING, new_id(socket.gethostname()), is_alone=is_alone, unable=bus.unable)


def _submit(
    settings: ScenarioRunnerSettings,
    plan: SqlPlan,
    registry: Peer,
    sessions: StoredSessions,
    environments: _Environments,
    loop: PlannerLoop,
) -> SubmitRun:
    hosts, sources = environments.hosts, environments.sources
    has_secrets = CheckSecrets(SecretValues(environments.secrets))
    keep = KeepSource(hosts.files_now, sources.keep, hosts.describe, has_secrets)
    return SubmitRun(
        plan,
        GrpcRegistry(registry),
        new_id=new_id,
        wake=loop.wake,
        sources=SourceChecks(keep, CheckGuidance(hosts.describe), hosts.describe),
        sessions=sessions,
        limits=SubmitLimits(settings.max_audits, timedelta(seconds=settings.sessions_gather_s)),
    )


def _prices(settings: ScenarioRunnerSettings) -> Prices:
    return Prices(settings.engine_price, settings.trainer_price, settings.environment_price)


def _catalog(
    settings: ScenarioRunnerSettings, plan: SqlPlan, environments: _Environments, lineages: GrpcLineages
) -> TasksetUseCases:
    hosts, sources = environments.hosts, environments.sources

    async def note(name: str, digest: str) -> None:
        await plan.transact(lambda unit: unit.note_source(name, digest, "deployed"))

    return TasksetUseCases(
        RegisterTaskset(plan, hosts, SourceRules(settings.environment_roots, settings.allow_tcp)),
        Tasksets(plan, hosts.files_now, lineages),
        ClaimTasks(plan),
        DeployEnvironment(hosts.forked.describe_packed, sources.keep, note),
        ReadSource(sources.packed),
    )


def _add_retention(
    service: Service,
    settings: ScenarioRunnerSettings,
    plan: SqlPlan,
    registry: Peer,
    sources: SourceStore,
    server: GrpcServer,
    up_to_date: UpToDate,
) -> None:
    references = ReferenceServicer(up_to_date.finding(FindReferences(plan)), now=utc_now)
    server.add(add_ReferenceServiceServicer_to_server, references, TASKSET_STATUSES)
    others = GrpcReferences({"checkpoint_registry": registry}, now=utc_now)
    remove = RemoveRuns(plan, others, age_of_days(settings.retention_runs_days), now=utc_now)
    old_sources = RemoveSources(plan, sources, age_of_days(settings.retention_sources_days), now=utc_now)
    sweeps = up_to_date.sweeping({"runs": remove, "sources": old_sources})
    if settings.retention_every_s:
        service.add(Worker("retention", RetentionLoop(sweeps, every_s=settings.retention_every_s).run))
    server.add(add_RetentionServiceServicer_to_server, RetentionServicer(sweeps), TASKSET_STATUSES)


def _rules(settings: ScenarioRunnerSettings) -> PlanRules:
    return PlanRules(
        eval_episodes_in_flight=settings.eval_episodes_in_flight,
        ending_grace_s=settings.cancel_grace_s,
        stop_grace_s=settings.stop_grace_s,
        settle_deadline_s=settings.settle_deadline_s,
    )


def main() -> None:
    """Entry point of `upcycle-scenario-runner`."""
    run_main(NAME, ScenarioRunnerSettings, build_app)


if __name__ == "__main__":
    main()
