"""Builds the trajectory store; nothing connects before it is started."""

from blob_store import S3BlobStore
from event_bus import BusTimings, EventBus
from grpc_edge import GrpcServer, Peer
from grpc_edge.key_follower import access_of
from retention import age_of_days
from retention.loop import SweepLoop
from retention.references import IDEMPOTENT, GrpcReferences
from retention.servicer import RetentionServicer
from retention.up_to_date import UpToDate
from service_kit.background import Worker
from service_kit.clock import utc_now
from service_kit.component import Closing
from service_kit.main import run_main
from service_kit.service import Service
from sql_store import MigratedDatabase, OutboxRelay
from trajectory_store.adapters.sql_imports import SqlImports
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.adapters.sql_monitors import SqlMonitors
from trajectory_store.adapters.sql_retention import SqlRetention
from trajectory_store.adapters.trajectory_bodies import TrajectoryBodies
from trajectory_store.domain.retention import Removable, StorePolicy
from trajectory_store.handlers import ledger_router
from trajectory_store.servicer import STATUS_OF, TrajectoryServicer, UseCases
from trajectory_store.settings import TrajectoryStoreSettings
from trajectory_store.usecases.importing import ImportTrajectories
from trajectory_store.usecases.reading import (
    CheckBodies,
    ExportTrajectories,
    GetTrajectory,
    ListTrajectories,
    ReadBody,
    WatchTrajectories,
)
from trajectory_store.usecases.retaining import RemoveOld
from trajectory_store.usecases.reviewing import ReviewRewards
from trajectory_store.usecases.watching_hacks import WatchRewards
from upcycle.api.retention.v1.service_pb2_grpc import add_RetentionServiceServicer_to_server
from upcycle.api.trajectory.v1.service_pb2_grpc import add_TrajectoryServiceServicer_to_server


def build_app(settings: TrajectoryStoreSettings) -> Service:
    """The whole service. Needs a running event loop; connects at start."""
    service = Service("trajectory_store", settings)
    db = service.add(MigratedDatabase(settings.sql.url_for("trajectory_store"), "trajectory_store"))
    store = S3BlobStore(settings.s3, retry_s=5.0)
    service.add(Closing("s3", store.stop))  # not started: the ledger goes on without the object store
    index, monitors = SqlIndex(db), SqlMonitors(db)
    bodies = TrajectoryBodies(store)
    read = ReadBody(index, bodies)
    watch = WatchTrajectories(index, poll_s=settings.watch_poll_s)
    watching = _watching(settings, monitors, read)
    # Handlers and connection together must be done within the component's own bound.
    timings = BusTimings(drain_s=settings.drain_s * 0.6, close_s=settings.drain_s * 0.15)
    bus = EventBus(settings.bus, client_name="trajectory_store", timings=timings)

    def on_change() -> None:
        watch.wake()
        watching.wake()

    bus.include_router(ledger_router(index, on_change=on_change, batch_size=settings.batch_size))
    service.add(bus)
    service.add(OutboxRelay(db, bus))
    check = CheckBodies(index, read, idle_s=settings.check_idle_s, batch_size=settings.export_page)
    _add_checks(service, settings, check, watching)
    export = ExportTrajectories(
        index, read, page_size=settings.export_page, parallel_reads=settings.export_parallel_reads
    )
    imports = ImportTrajectories(SqlImports(db), bodies, on_change=watch.wake, now=utc_now)
    behind = bus.behind if settings.monitor_rewards else None
    reviews = ReviewRewards(index, monitors, behind=behind, on_change=watch.wake, now=utc_now)
    used = UseCases(
        index, GetTrajectory(index, read), ListTrajectories(index), watch, export, imports, reviews
    )
    access = access_of(service, settings.access, settings.peers.registry)
    server = GrpcServer.of(settings, access)
    server.add(add_TrajectoryServiceServicer_to_server, TrajectoryServicer(used, now=utc_now), STATUS_OF)
    up_to_date = UpToDate("trajectory_store", bus.unread, now=utc_now)
    _add_retention(service, settings, SqlRetention(db), store, server, up_to_date)
    service.add(server)
    return service


def _add_checks(
    service: Service, settings: TrajectoryStoreSettings, check: CheckBodies, watching: WatchRewards
) -> None:
    if settings.check_bodies:
        service.add(Worker("check_bodies", check.run))
    if settings.monitor_rewards:
        service.add(Worker("reward_monitors", watching.run))


def _watching(settings: TrajectoryStoreSettings, monitors: SqlMonitors, read: ReadBody) -> WatchRewards:
    return WatchRewards(
        monitors,
        read,
        now=utc_now,
        idle_s=settings.monitor_idle_s,
        batch_size=settings.export_page,
        quarantines=settings.quarantine_hacks,
    )


def _add_retention(
    service: Service,
    settings: TrajectoryStoreSettings,
    rows: SqlRetention,
    bodies: S3BlobStore,
    server: GrpcServer,
    up_to_date: UpToDate,
) -> None:
    planner = service.add(
        Peer("tasksets", settings.peers.tasksets, api_key=settings.access.sent, idempotent=IDEMPOTENT)
    )
    registry = service.add(
        Peer("registry", settings.peers.registry, api_key=settings.access.sent, idempotent=IDEMPOTENT)
    )
    references = GrpcReferences({"checkpoint_registry": registry, "scenario_runner": planner}, now=utc_now)
    policy = StorePolicy(
        age_of_days(settings.retention_bodies_days),
        age_of_days(settings.retention_episodes_days),
        settings.retention_bodies_bytes,
    )
    sweeps = up_to_date.sweeping(
        {what.value: RemoveOld(what, rows, bodies, references, policy, now=utc_now) for what in Removable}
    )
    if settings.retention_every_s:
        service.add(Worker("retention", SweepLoop(sweeps, every_s=settings.retention_every_s).run))
    server.add(add_RetentionServiceServicer_to_server, RetentionServicer(sweeps), STATUS_OF)


def main() -> None:
    """Entry point of `upcycle-trajectory-store`."""
    run_main("trajectory_store", TrajectoryStoreSettings, build_app)


if __name__ == "__main__":
    main()
