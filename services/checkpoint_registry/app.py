"""Builds the checkpoint registry; the only module that constructs adapters."""

from datetime import timedelta

from blob_store import S3BlobStore
from checkpoint_registry.adapters.planner import IDEMPOTENT, GrpcTasksets
from checkpoint_registry.adapters.policy_store import BlobPolicyStore
from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlLeaseStore, SqlModelStore
from checkpoint_registry.adapters.version_store import BlobVersions
from checkpoint_registry.domain.retention import RetentionPolicy
from checkpoint_registry.driver import GateDriver, Wakeups
from checkpoint_registry.handlers import RegistryHandlers
from checkpoint_registry.servicer import RegistryServicer
from checkpoint_registry.settings import CheckpointRegistrySettings
from checkpoint_registry.sweeper import Sweeper
from checkpoint_registry.usecases.evidence import EvidencePolicy, GatherEvidence
from checkpoint_registry.usecases.gating import GatePolicy, RunGate
from checkpoint_registry.usecases.leases import EngineLeases
from checkpoint_registry.usecases.models import ManageModels
from checkpoint_registry.usecases.retention import PruneVersions
from checkpoint_registry.usecases.rollback import RollbackPolicy, WatchHead
from event_bus import EventBus
from event_bus.topology import CHECKPOINT_REGISTRY
from grpc_edge import GrpcServer, Peer
from service_kit import Service, Worker, run_main, utc_now
from sql_store import Database, OutboxRelay, migrate
from upcycle.api.registry.v1.service_pb2_grpc import add_RegistryServiceServicer_to_server

NAME = "checkpoint_registry"
# Lapsed leases are kept a while for whoever asks what became of an engine, then forgotten.
_FORGET_LEASES_AFTER = timedelta(hours=1)


class Tables:
    """The database as a component: opened, and brought to this program's version."""

    name = "sql"

    def __init__(self, database: Database, leases: SqlLeaseStore) -> None:
        self._database = database
        self._leases = leases

    async def start(self) -> None:
        """Opens, migrates, forgets engines that are long gone."""
        await self._database.start()
        await migrate(self._database, NAME)
        await self._leases.forget_lapsed(utc_now() - _FORGET_LEASES_AFTER)

    async def stop(self) -> None:
        """Closes."""
        await self._database.stop()

    def ready(self) -> str | None:
        """Open or not."""
        return None if self._database.ready() else "closed"


def build_app(settings: CheckpointRegistrySettings) -> Service:
    """Wires everything; nothing connects before the service starts."""
    service = Service(NAME, settings)
    database = Database(settings.sql.url_for(NAME))
    blobs = S3BlobStore(settings.s3)
    bus = EventBus(settings.bus, client_name=NAME)
    planner = Peer("tasksets", settings.peers.tasksets, idempotent=IDEMPOTENT)
    tasksets = GrpcTasksets(planner)
    models, gates, leases = SqlModelStore(database), SqlGateStore(database), SqlLeaseStore(database)
    wakeups = Wakeups()
    evidence = GatherEvidence(gates, models, tasksets, _evidence_policy(settings), now=utc_now)
    gate = RunGate(gates, models, tasksets, evidence, GatePolicy(settings.gate_min_family_tasks), now=utc_now)
    rollback = RollbackPolicy(settings.auto_rollback, settings.rollback_confidence)
    head = WatchHead(gates, models, rollback, now=utc_now)
    driver = GateDriver(gate, head, (models, gates), wakeups, poll_s=settings.gate_poll_s)
    policies = BlobPolicyStore(
        blobs,
        staging_dir=settings.staging_dir or settings.sql.data_dir / "import",
        max_import_bytes=settings.max_import_bytes,
        now=utc_now,
    )
    servicer = RegistryServicer(
        ManageModels(models, policies, wakeups, now=utc_now), models, EngineLeases(leases, now=utc_now)
    )
    bus.subscribe(CHECKPOINT_REGISTRY, RegistryHandlers(gate, evidence, wakeups).on_event)
    service.add(Tables(database, leases))
    service.add(blobs)
    service.add(planner)
    service.add(
        GrpcServer(settings.host, settings.grpc_port).add(add_RegistryServiceServicer_to_server, servicer)
    )
    service.add(bus)
    service.add(OutboxRelay(database, bus))
    service.add(Worker("gate", driver.run, ready=driver.ready))
    if settings.retention_every_s:
        sweeper = _sweeper(settings, (models, leases, BlobVersions(blobs)), tasksets)
        service.add(Worker("retention", sweeper.run, ready=sweeper.ready))
    return service


def _sweeper(
    settings: CheckpointRegistrySettings,
    stores: tuple[SqlModelStore, SqlLeaseStore, BlobVersions],
    tasksets: GrpcTasksets,
) -> Sweeper:
    min_age = timedelta(seconds=settings.retention_min_age_s)
    policy = RetentionPolicy(settings.retention_keep_versions, min_age)
    return Sweeper(PruneVersions(stores, tasksets, policy, now=utc_now), every_s=settings.retention_every_s)


def _evidence_policy(settings: CheckpointRegistrySettings) -> EvidencePolicy:
    return EvidencePolicy(
        min_coverage=settings.gate_min_coverage,
        max_tries=settings.gate_max_tries,
        first_retry_s=settings.gate_first_retry_s,
    )


def main() -> None:
    """`upcycle-checkpoint-registry`."""
    run_main(NAME, CheckpointRegistrySettings, build_app)


if __name__ == "__main__":
    main()
