"""Builds the trajectory store; nothing connects before it is started."""

import logging

from blob_store import S3BlobStore
from event_bus import BusTimings, EventBus
from event_bus.topology import TRAJECTORY_STORE_LEDGER
from grpc_edge import GrpcServer
from service_kit import Service, Worker, run_main, utc_now
from sql_store import Database, OutboxRelay, migrate
from trajectory_store.adapters.blob_bodies import BlobBodies
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.handlers import LedgerHandler
from trajectory_store.servicer import TrajectoryServicer, UseCases
from trajectory_store.settings import StoreSettings
from trajectory_store.usecases import (
    CheckBodies,
    ExportTrajectories,
    GetTrajectory,
    ListTrajectories,
    ReadBody,
    WatchTrajectories,
)
from upcycle.api.trajectory.v1.service_pb2_grpc import add_TrajectoryServiceServicer_to_server

log = logging.getLogger(__name__)


class _Tables:
    """The database, brought to this program's version when it starts."""

    name = "database"

    def __init__(self, db: Database) -> None:
        self._db = db

    async def start(self) -> None:
        """Open and migrate."""
        await self._db.start()
        await migrate(self._db, "trajectory_store")

    async def stop(self) -> None:
        """Finish what is in flight."""
        await self._db.stop()

    def ready(self) -> str | None:
        """Open for transactions."""
        return None if self._db.ready() else "closed"


class _Bodies:
    """The object store, reached at first use: the ledger goes on without it."""

    name = "s3"

    def __init__(self, store: S3BlobStore) -> None:
        self._store = store

    async def start(self) -> None:
        """Nothing: a store that is away makes single calls fail, typed."""

    async def stop(self) -> None:
        """Let the connections go."""
        await self._store.stop()

    def ready(self) -> str | None:
        """The index answers without bodies."""
        return None


def build_app(settings: StoreSettings) -> Service:
    """The whole service. Needs a running event loop; connects at start."""
    service = Service("trajectory_store", settings)
    db = Database(settings.sql.url_for("trajectory_store"))
    service.add(_Tables(db))
    store = S3BlobStore(settings.s3, retry_s=5.0)
    service.add(_Bodies(store))
    index = SqlIndex(db)
    read = ReadBody(index, BlobBodies(store))
    watch = WatchTrajectories(index, poll_s=settings.watch_poll_s)
    # Handlers and connection together must be done within the component's own bound.
    timings = BusTimings(drain_s=settings.drain_s * 0.6, close_s=settings.drain_s * 0.15)
    bus = EventBus(settings.bus, client_name="trajectory_store", timings=timings)
    handler = LedgerHandler(index, on_change=watch.wake)
    bus.subscribe_batch(TRAJECTORY_STORE_LEDGER, handler, batch_size=settings.batch_size)
    service.add(bus)
    service.add(OutboxRelay(db, bus))
    if settings.check_bodies:
        check = CheckBodies(
            index, read, idle_s=settings.check_idle_s, batch_size=settings.export_page, on_wait=_say_wait
        )
        service.add(Worker("check_bodies", check.run))
    export = ExportTrajectories(
        index, read, page_size=settings.export_page, parallel_reads=settings.export_parallel_reads
    )
    usecases = UseCases(index, GetTrajectory(index, read), ListTrajectories(index), watch, export)
    server = GrpcServer(settings.host, settings.grpc_port)
    server.add(add_TrajectoryServiceServicer_to_server, TrajectoryServicer(usecases, now=utc_now))
    service.add(server)
    return service


def _say_wait(waiting_for: str) -> None:
    log.warning("body_checks_wait", extra={"waiting_for": waiting_for})


def main() -> None:
    """Entry point of `upcycle-trajectory-store`."""
    run_main("trajectory_store", StoreSettings, build_app)


if __name__ == "__main__":
    main()
