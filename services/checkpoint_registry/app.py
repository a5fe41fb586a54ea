"""Builds the checkpoint registry; the only module that constructs adapters."""

from dataclasses import dataclass
from datetime import timedelta

from blob_store import S3BlobStore
from checkpoint_registry.adapters.announced_versions import KeptAnnouncements
from checkpoint_registry.adapters.planner import IDEMPOTENT, GrpcTasksets
from checkpoint_registry.adapters.policy_store import PolicyUploads
from checkpoint_registry.adapters.reward_alarms import IDEMPOTENT as ALARMS_IDEMPOTENT
from checkpoint_registry.adapters.reward_alarms import GrpcRewardAlarms
from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.sql_pairs import SqlPairStore
from checkpoint_registry.adapters.sql_references import SqlReferences
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.adapters.sql_watches import SqlWatchStore
from checkpoint_registry.adapters.version_files import VersionFiles
from checkpoint_registry.domain.retention import RetentionPolicy
from checkpoint_registry.handlers import EvidenceReaders, registry_router
from checkpoint_registry.loops import GateLoop, GateLoopDeps, GateWakeups, LostFactsLoop, RetentionLoop
from checkpoint_registry.servicer import STATUS_OF, RegistryServicer
from checkpoint_registry.settings import CheckpointRegistrySettings
from checkpoint_registry.usecases.evidence import GatherEvidence
from checkpoint_registry.usecases.gating import RunGate
from checkpoint_registry.usecases.leases import EngineLeases
from checkpoint_registry.usecases.lost_facts import TakeLostFacts
from checkpoint_registry.usecases.models import ManageModels
from checkpoint_registry.usecases.pairing import PairPolicy, PlayPairs
from checkpoint_registry.usecases.references import FindReferences
from checkpoint_registry.usecases.retention import PruneVersions, RetentionDeps
from checkpoint_registry.usecases.rollback import RollbackPolicy, WatchHead
from checkpoint_registry.usecases.watching import WatchHeads, WatchPolicy
from event_bus import EventBus
from grpc_edge import GrpcServer, Peer
from retention.servicer import ReferenceServicer
from retention.up_to_date import UpToDate
from service_kit.background import Worker
from service_kit.clock import utc_now
from service_kit.main import run_main
from service_kit.service import Service
from sql_store import MigratedDatabase, OutboxRelay
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


def build_app(settings: CheckpointRegistrySettings) -> Service:
    """Wires everything; nothing connects before the service starts."""
    service = Service(NAME, settings)
    database = RegistryDatabase(settings.sql.url_for(NAME), NAME)
    blobs = S3BlobStore(settings.s3)
    bus = EventBus(settings.bus, client_name=NAME)
    planner = Peer("tasksets", settings.peers.tasksets, idempotent=IDEMPOTENT)
    tasksets = GrpcTasksets(planner)
    models, leases = SqlModelStore(database), SqlLeaseStore(database)
    versions, wakeups = SqlVersionStore(database), GateWakeups()
    store = Peer("trajectories", settings.peers.trajectories, idempotent=ALARMS_IDEMPOTENT)
    judging = _judging(settings, database, tasksets, GrpcRewardAlarms(store), wakeups)
    gate_loop = GateLoop(judging.loop, poll_s=settings.gate_poll_s)
    manage = ManageModels(models, _policy_store(settings, blobs), wakeups.wake, now=utc_now)
    servicer = RegistryServicer(manage, models, versions, EngineLeases(leases, now=utc_now))
    up_to_date = UpToDate(NAME, bus.unread, now=utc_now)
    references = up_to_date.finding(FindReferences(SqlReferences(database)))
    announced = KeptAnnouncements(blobs)
    lost = TakeLostFacts(announced, versions, judging.loop.gate, wakeups.wake)
    grpc_server = GrpcServer(settings.host, settings.grpc_port)
    readers = EvidenceReaders(judging.pairs, judging.loop.watch, judging.evidence)
    bus.include_router(registry_router(judging.loop.gate, readers, versions, announced, wakeups.wake))
    for component in (
        database,
        blobs,
        planner,
        store,
        grpc_server.add(add_RegistryServiceServicer_to_server, servicer, STATUS_OF).add(
            add_ReferenceServiceServicer_to_server, ReferenceServicer(references, now=utc_now), STATUS_OF
        ),
        bus,
        OutboxRelay(database, bus),
        Worker("gate", gate_loop.run),
        Worker("lost facts", LostFactsLoop(lost).run),
    ):
        service.add(component)
    if settings.retention_every_s:
        deps = RetentionDeps(models, leases, tasksets, versions, VersionFiles(blobs))
        service.add(Worker("retention", _retention(settings, deps).run))
    return service


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
    watch = WatchHeads(watches, models, tasksets, _watch_policy(settings), now=utc_now)
    evidence = GatherEvidence(gates, models, tasksets, now=utc_now)
    return _Judging(pairs, evidence, GateLoopDeps(gate, head, watch, gates, watches, wakeups))


def _policy_store(settings: CheckpointRegistrySettings, blobs: S3BlobStore) -> PolicyUploads:
    return PolicyUploads(
        blobs,
        staging_dir=settings.staging_dir or settings.sql.data_dir / "import",
        max_import_bytes=settings.max_import_bytes,
        now=utc_now,
    )


def _retention(settings: CheckpointRegistrySettings, deps: RetentionDeps) -> RetentionLoop:
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
