"""Builds the checkpoint registry; the only module that constructs adapters."""

from dataclasses import dataclass
from datetime import timedelta

from blob_store import BlobStore, S3BlobStore
from checkpoint_registry.adapters.announced_versions import KeptAnnouncements
from checkpoint_registry.adapters.graded_sessions import IDEMPOTENT as SESSIONS_IDEMPOTENT
from checkpoint_registry.adapters.graded_sessions import GrpcGradedSessions
from checkpoint_registry.adapters.planner import IDEMPOTENT, GrpcTasksets
from checkpoint_registry.adapters.policy_store import PolicyUploads
from checkpoint_registry.adapters.reward_alarms import IDEMPOTENT as ALARMS_IDEMPOTENT
from checkpoint_registry.adapters.reward_alarms import GrpcRewardAlarms
from checkpoint_registry.adapters.sql_canary_releases import SqlCanaryReleases
from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_holds import SqlHoldStore
from checkpoint_registry.adapters.sql_keys import SqlKeyStore
from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.sql_pairs import SqlPairStore
from checkpoint_registry.adapters.sql_references import SqlReferences
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.adapters.version_files import VersionFiles
from checkpoint_registry.domain.retention import RetentionPolicy
from checkpoint_registry.handlers import EvidenceReaders, registry_router
from checkpoint_registry.loops import (
    GateLoop,
    GateLoopDeps,
    GateWakeups,
    HeldReleasesLoop,
    LostFactsLoop,
    RetentionLoop,
    SessionWatchLoop,
)
from checkpoint_registry.servicer import STATUS_OF, KeyServicer, RegistryServicer
from checkpoint_registry.settings import CheckpointRegistrySettings
from checkpoint_registry.usecases.canary_releases import CanaryReleases
from checkpoint_registry.usecases.evidence import GatherEvidence
from checkpoint_registry.usecases.gating import RunGate
from checkpoint_registry.usecases.holds import HoldPolicies
from checkpoint_registry.usecases.keys import ManageKeys
from checkpoint_registry.usecases.leases import EngineLeases
from checkpoint_registry.usecases.lost_facts import TakeLostFacts
from checkpoint_registry.usecases.models import ManageModels
from checkpoint_registry.usecases.pairing import PairPolicy, PlayPairs
from checkpoint_registry.usecases.references import FindReferences
from checkpoint_registry.usecases.retention import PruneVersions, RetentionDeps
from checkpoint_registry.usecases.rollback import RollbackPolicy, WatchHead
from checkpoint_registry.usecases.session_watching import SessionPolicy, WatchSessions
from checkpoint_registry.usecases.watch_reports import ReportWatches
from checkpoint_registry.usecases.watch_turns import WatchPolicy, WatchTurns
from checkpoint_registry.usecases.watching import WatchHeads
from event_bus import EventBus
from grpc_edge import GrpcServer, Peer
from grpc_edge.access import Access
from grpc_edge.audit import AuditServicer
from grpc_edge.key_follower import follow_issuer, follow_keys
from retention.servicer import ReferenceServicer
from retention.up_to_date import UpToDate
from service_kit.background import Worker
from service_kit.clock import utc_now
from service_kit.main import run_main
from service_kit.service import Service
from signed_objects import signed_store
from sql_store import MigratedDatabase, OutboxRelay
from upcycle.api.audit.v1.service_pb2_grpc import add_AuditServiceServicer_to_server
from upcycle.api.keys.v1.service_pb2_grpc import add_KeyServiceServicer_to_server
from upcycle.api.registry.v1.service_pb2_grpc import add_RegistryServiceServicer_to_server
from upcycle.api.retention.v1.service_pb2_grpc import add_ReferenceServiceServicer_to_server

NAME = "checkpoint_registry"
# A lapsed lease stays readable for a while, to show what became of an engine.
_FORGET_LEASES_AFTER = timedelta(hours=1)


class RegistryDatabase(MigratedDatabase):
    """The registry's tables; starting it also deletes leases of engines that are long gone."""

    async def start(self) -> None:
        """Open, migrate, clean up. Raises MigrationFailed, Unavailable, StoreFull."""
        await super().start()
        await SqlLeaseStore(self).forget_lapsed(utc_now() - _FORGET_LEASES_AFTER)
        await SqlHoldStore(self).forget_expired(utc_now())


def build_app(settings: CheckpointRegistrySettings) -> Service:
    """Wires everything; nothing connects before the service starts."""
    service = Service(NAME, settings)
    database = RegistryDatabase(settings.sql.url_for(NAME), NAME)
    bucket = S3BlobStore(settings.s3)
    blobs = signed_store(bucket, settings.signing, NAME)
    bus = EventBus(settings.bus, client_name=NAME)
    planner, store = _peers(settings)
    tasksets, wakeups = GrpcTasksets(planner), GateWakeups()
    judging = _judging(settings, database, tasksets, GrpcRewardAlarms(store), wakeups)
    versions, announced = SqlVersionStore(database), KeptAnnouncements(blobs)
    readers = EvidenceReaders(judging.pairs, judging.loop.watch, judging.evidence)
    bus.include_router(registry_router(judging.loop.gate, readers, versions, announced, wakeups.wake))
    releases = CanaryReleases(SqlCanaryReleases(database), now=utc_now)
    manage = ManageModels(SqlModelStore(database), _policy_store(settings, blobs), wakeups.wake, now=utc_now)
    service.add(database)
    server = _server(service, settings, database)
    servicer = _registry_servicer(database, manage, releases, _watch_reports(settings, database, tasksets))
    server.add(add_RegistryServiceServicer_to_server, servicer, STATUS_OF)
    server.add(add_ReferenceServiceServicer_to_server, _reference_servicer(database, bus), STATUS_OF)
    lost = TakeLostFacts(announced, versions, judging.loop.gate, wakeups.wake)
    for component in (
        bucket,
        planner,
        store,
        server,
        bus,
        OutboxRelay(database, bus),
        Worker("gate", GateLoop(judging.loop, poll_s=settings.gate_poll_s).run),
        Worker("lost facts", LostFactsLoop(lost).run),
        Worker("canary releases", HeldReleasesLoop(releases).run),
    ):
        service.add(component)
    if settings.auto_rollback and settings.watch_sessions_every_s:
        sessions = _session_watch(settings, database, releases, GrpcGradedSessions(store))
        service.add(Worker("session watch", sessions.run))
    if settings.retention_every_s:
        service.add(Worker("retention", _retention(settings, database, tasksets, blobs).run))
    return service


def _peers(settings: CheckpointRegistrySettings) -> tuple[Peer, Peer]:
    """Planner and trajectory store."""
    key, idempotent = settings.access.sent, ALARMS_IDEMPOTENT + SESSIONS_IDEMPOTENT
    return (
        Peer("tasksets", settings.peers.tasksets, api_key=key, idempotent=IDEMPOTENT),
        Peer("trajectories", settings.peers.trajectories, api_key=key, idempotent=idempotent),
    )


def _registry_servicer(
    database: RegistryDatabase, manage: ManageModels, releases: CanaryReleases, watches: ReportWatches
) -> RegistryServicer:
    models = SqlModelStore(database)
    leases = EngineLeases(SqlLeaseStore(database), now=utc_now)
    holding = HoldPolicies(SqlHoldStore(database), models, now=utc_now)
    return RegistryServicer(manage, models, SqlVersionStore(database), leases, holding, releases, watches)


def _reference_servicer(database: RegistryDatabase, bus: EventBus) -> ReferenceServicer:
    up_to_date = UpToDate(NAME, bus.unread, now=utc_now)
    return ReferenceServicer(up_to_date.finding(FindReferences(SqlReferences(database))), now=utc_now)


def _server(service: Service, settings: CheckpointRegistrySettings, database: RegistryDatabase) -> GrpcServer:
    """With KeyService and AuditService on it; the keys that it made count here, too."""
    keys = ManageKeys(SqlKeyStore(database), now=utc_now)
    issued = follow_keys(service, keys)
    keys.on_change = issued.wake
    access = Access.of(settings.access, issued, follow_issuer(service, settings.access))
    server = GrpcServer.of(settings, access)
    server.add(add_AuditServiceServicer_to_server, AuditServicer(database), STATUS_OF)
    return server.add(add_KeyServiceServicer_to_server, KeyServicer(keys), STATUS_OF)


@dataclass(frozen=True, slots=True)
class _Judging:
    """What decides about heads."""

    pairs: PlayPairs
    evidence: GatherEvidence
    loop: GateLoopDeps


def _judging(
    settings: CheckpointRegistrySettings,
    database: RegistryDatabase,
    tasksets: GrpcTasksets,
    alarms: GrpcRewardAlarms,
    wakeups: GateWakeups,
) -> _Judging:
    models, gates, played = SqlModelStore(database), SqlGateStore(database), SqlPairStore(database)
    pairs = PlayPairs(played, tasksets, _pair_policy(settings), now=utc_now)
    gate = RunGate(gates, models, played, tasksets, pairs, now=utc_now, alarms=alarms)
    rollback = RollbackPolicy(settings.auto_rollback, settings.rollback_confidence)
    head = WatchHead(gates, played, models, rollback, now=utc_now)
    watches = SqlWatchStore(database)
    watch = WatchHeads(watches, models, tasksets, _watch_policy(settings), now=utc_now, alarms=alarms)
    evidence = GatherEvidence(gates, models, tasksets, now=utc_now)
    return _Judging(pairs, evidence, GateLoopDeps(gate, head, watch, gates, watches, wakeups))


def _policy_store(settings: CheckpointRegistrySettings, blobs: BlobStore) -> PolicyUploads:
    return PolicyUploads(
        blobs,
        staging_dir=settings.staging_dir or settings.sql.data_dir / "import",
        max_import_bytes=settings.max_import_bytes,
        now=utc_now,
    )


def _retention(
    settings: CheckpointRegistrySettings, database: RegistryDatabase, tasksets: GrpcTasksets, blobs: BlobStore
) -> RetentionLoop:
    deps = RetentionDeps(
        SqlModelStore(database),
        SqlLeaseStore(database),
        SqlHoldStore(database),
        tasksets,
        SqlVersionStore(database),
        VersionFiles(blobs),
    )
    min_age = timedelta(seconds=settings.retention_min_age_s)
    policy = RetentionPolicy(settings.retention_keep_versions, min_age)
    return RetentionLoop(PruneVersions(deps, policy, now=utc_now), every_s=settings.retention_every_s)


def _watch_policy(settings: CheckpointRegistrySettings) -> WatchPolicy:
    return WatchPolicy(
        enabled=settings.auto_rollback and settings.watch_pairs > 0,
        pairs=settings.watch_pairs,
        in_flight=settings.watch_in_flight,
        trickle_s=settings.watch_trickle_s,
        deadline_s=settings.gate_evaluation_s,
    )


def _watch_reports(
    settings: CheckpointRegistrySettings, database: RegistryDatabase, tasksets: GrpcTasksets
) -> ReportWatches:
    store, models, policy = SqlWatchStore(database), SqlModelStore(database), _watch_policy(settings)
    turns = WatchTurns(store, models, tasksets, policy, now=utc_now)
    return ReportWatches(turns, models, store, policy)


def _session_watch(
    settings: CheckpointRegistrySettings,
    database: RegistryDatabase,
    releases: CanaryReleases,
    sessions: GrpcGradedSessions,
) -> SessionWatchLoop:
    policy = SessionPolicy(settings.watch_sessions_share, settings.watch_sessions_pairs)
    watch = WatchSessions(releases, SqlModelStore(database), sessions, policy, now=utc_now)
    return SessionWatchLoop(watch, every_s=settings.watch_sessions_every_s)


def _pair_policy(settings: CheckpointRegistrySettings) -> PairPolicy:
    return PairPolicy(
        max_tries=settings.gate_max_tries,
        first_retry_s=settings.gate_first_retry_s,
        deadline_s=settings.gate_evaluation_s,
    )


def main() -> None:
    """`upcycle-checkpoint-registry`."""
    run_main(NAME, CheckpointRegistrySettings, build_app)


if __name__ == "__main__":
    main()
