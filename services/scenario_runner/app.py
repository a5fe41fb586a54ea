"""Builds the scenario runner; with `hosting` the only module that constructs adapters."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
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
from scenario_runner import telemetry
from scenario_runner.adapters.bus_outcomes import BusOutcomes
from scenario_runner.adapters.hosts import Hosts
from scenario_runner.adapters.peers import BusGauge, GrpcLineages, GrpcRegistry, PeerFacts
from scenario_runner.adapters.planned_episodes import SqlPlannedEpisodes
from scenario_runner.adapters.sealing import Sealer
from scenario_runner.adapters.source_store import SourceStore
from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.adapters.sql_secrets import SqlSecrets
from scenario_runner.adapters.stored_sessions import StoredSessions
from scenario_runner.adapters.stored_transcripts import ScenarioTranscripts
from scenario_runner.domain.new_tasks import NewTaskState
from scenario_runner.domain.runs import Prices
from scenario_runner.handlers import READING, plan_router
from scenario_runner.hosting import build_hosts
from scenario_runner.loops import (
    FleetLoop,
    GeneratorLoop,
    LeakLoop,
    PlannerLoop,
    SessionLoop,
    SweepLoop,
    TrackLoop,
)
from scenario_runner.servicer.environments import EnvironmentServicer
from scenario_runner.servicer.secrets import SecretServicer
from scenario_runner.servicer.statuses import ENVIRONMENT_STATUSES, TASKSET_STATUSES
from scenario_runner.servicer.tasksets import TasksetServicer, TasksetUseCases
from scenario_runner.settings import NAME, ScenarioRunnerSettings
from scenario_runner.usecases.arriving_sessions import TakeSessions
from scenario_runner.usecases.attacks import RecordAttack
from scenario_runner.usecases.catalog import Tasksets
from scenario_runner.usecases.deploying import DeployEnvironment
from scenario_runner.usecases.explaining import ExplainRun
from scenario_runner.usecases.generating import MakeTasks
from scenario_runner.usecases.kept_sources import ReadSource
from scenario_runner.usecases.leak_scanning import ScanForLeaks
from scenario_runner.usecases.leases import LeaseRules, Leases
from scenario_runner.usecases.planning import PlanRules
from scenario_runner.usecases.references import FindReferences
from scenario_runner.usecases.registering import RegisterTaskset, SourceRules
from scenario_runner.usecases.retaining import RemoveRuns
from scenario_runner.usecases.retaining_sources import RemoveSources
from scenario_runner.usecases.run_sources import (
    CheckDifficulty,
    CheckGenerators,
    CheckGuidance,
    CheckProposers,
    KeepSource,
    SourceChecks,
)
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

BODY_RETRY_S: Final = 5.0
"""How long a read of a trajectory body is repeated while the object store is unavailable."""
NEVER_OVERTAKEN: Final = (RunSubmitted,)
"""The trainer begins to read a run at its run.submitted: no episode of it may be played, and nothing about it
be decided, before that."""
_DRAIN_SHARE: Final = 0.75
"""Of the time to stop: what episodes get to end, before the server stops answering them."""
_IDEMPOTENT: Final = ("GetModel", "GetVersion", "ListModels", "ListCheckpoints", *ASKED_AGAIN)


@dataclass(frozen=True, slots=True)
class _Environments:
    """Where they run, their kept sources, the secrets of their MCP servers, the trajectories they read."""

    hosts: Hosts
    sources: SourceStore
    secrets: SqlSecrets
    transcripts: ScenarioTranscripts


def build_app(settings: ScenarioRunnerSettings, server: GrpcServer | None = None) -> Service:
    """Wires everything; nothing connects before the service starts. server: where to serve, by default the
    settings' address."""
    service = Service(NAME, settings)
    database = service.add(MigratedDatabase(settings.sql.url_for(NAME), NAME))
    bodies = S3BlobStore(settings.s3, retry_s=BODY_RETRY_S)
    service.add(Closing("s3", bodies.stop))
    sources = SourceStore(bodies)
    key, old = settings.secrets_key_file, settings.secrets_old_key_files
    secrets = SqlSecrets(database, Sealer(key, old) if key else None)
    hosts = build_hosts(settings, sources.find, SecretValues(secrets))
    transcripts = ScenarioTranscripts(bodies)
    environments = _Environments(hosts, sources, secrets, transcripts)
    service.add(Closing("environments", hosts.stop))
    episodes = SqlPlannedEpisodes(database, now=utc_now)
    rules = LeaseRules(settings.max_environments, settings.lease_s)
    leases = Leases(hosts, episodes, transcripts, rules, now=utc_now, new_id=new_id)
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
    registry = service.add(_registry(settings))
    gauge = BusGauge(settings.bus)
    service.add(Closing("bus gauge", gauge.stop))
    trajectories = service.add(_trajectories(settings))
    peer_facts = _peer_facts(service, settings, registry, trajectories, gauge)
    loop = PlannerLoop(plan, rules)
    bus = EventBus(settings.bus, client_name=NAME)
    sweeps = SweepLoop(plan, gauge, peer_facts, BusOutcomes(bus), rules, now=utc_now)
    _add_bus(service, database, bus, plan, loop)
    recorded = StoredSessions(trajectories, now=utc_now)
    make = MakeTasks(
        plan, environments.hosts, wake=loop.wake, read=environments.transcripts.read, note=_note_new_task
    )
    sessions = _session_loop(settings, plan, recorded, loop)
    failing = _add_loops(service, loop, sweeps, sessions, GeneratorLoop(make))
    explain = ExplainRun(
        plan,
        peer_facts,
        fleet=lambda: (leases.num_alive, settings.max_environments),
        bus_alarms=bus.alarms,
        failing=failing,
    )
    submit = _submit(settings, plan, registry, recorded, environments, loop)
    _add_watches(service, plan, submit, environments.hosts)
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
    service: Service, loop: PlannerLoop, sweeps: SweepLoop, sessions: SessionLoop, generators: GeneratorLoop
) -> Callable[[str], list[str]]:
    """Returns what says of a run which of them fails for it, and of what."""
    planning, sweeping, looking, generating = FailingWork(), FailingWork(), FailingWork(), FailingWork()
    service.add(Worker("generators", generators.run, failing=generating))
    service.add(Worker("sessions", sessions.run, failing=looking))
    service.add(Worker("planner", loop.run, failing=planning))
    service.add(Worker("sweeps", sweeps.run, failing=sweeping))
    every = (planning, sweeping, looking, generating)
    return lambda run_id: [text for work in every for text in work.of(run_id)]


def _add_watches(service: Service, plan: SqlPlan, submit: SubmitRun, hosts: Hosts) -> None:
    """Of training runs that are followed on held-out sets, and of tasksets that are registered."""
    service.add(Worker("tracking", TrackLoop(TrackRuns(plan, submit)).run))
    service.add(Worker("leak scans", LeakLoop(ScanForLeaks(plan, hosts, now=utc_now)).run))


def _note_new_task(state: NewTaskState) -> None:
    telemetry.NEW_TASKS.labels(state.value).inc()


def _session_loop(
    settings: ScenarioRunnerSettings, plan: SqlPlan, sessions: StoredSessions, loop: PlannerLoop
) -> SessionLoop:
    gather = timedelta(seconds=settings.sessions_gather_s)
    take = TakeSessions(plan, sessions, gather=gather, wake=loop.wake)
    return SessionLoop(take, every_s=settings.sessions_every_s)


def _registry(settings: ScenarioRunnerSettings) -> Peer:
    address, key = settings.peers.registry, settings.access.sent
    return Peer("registry", address, api_key=key, idempotent=_IDEMPOTENT)


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
        sources=SourceChecks(
            keep,
            CheckGuidance(hosts.describe),
            hosts.describe,
            CheckGenerators(hosts.describe),
            CheckProposers(hosts.describe),
            CheckDifficulty(hosts.describe),
        ),
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
        RecordAttack(plan),
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
