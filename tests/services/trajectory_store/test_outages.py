"""The store goes on after a kill, without an object store, and when its disk was full."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from tests.conftest import NatsFactory
from tests.services.trajectory_store import events
from tests.support.waiting import until

from event_bus import BusSettings, Delivery, EventBus, EventRouter
from event_bus.provision import provision
from service_kit.errors import StoreFull
from service_kit.groups import S3Settings
from service_kit.ports import free_ports
from sql_store import Database
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.handlers import ledger_router
from upcycle.api.trajectory.v1 import service_pb2 as pb

if TYPE_CHECKING:
    pass


from tests.services.trajectory_store.running_store import FAST, running


async def test_a_killed_store_picks_up_where_its_database_is(
    nats_server: NatsFactory, s3_settings: S3Settings, tmp_path: Path
) -> None:
    server = nats_server()
    await provision(server.url)
    async with running(server.url, s3_settings, tmp_path) as first:
        await first.publish(*(events.requested(number) for number in range(30)))

        async def some() -> bool:
            return (await first.ledger()).requested > 0

        await until(some)
        await first.publish(*(events.failed(number) for number in range(30)))
    async with running(server.url, s3_settings, tmp_path) as second:

        async def all_settled() -> bool:
            ledger = await second.ledger()
            return ledger.requested == ledger.settled == 30

        await until(all_settled)
        assert (await second.ledger()).conflicts == 0


async def test_without_an_object_store_the_ledger_goes_on_and_reads_say_why(
    nats_server: NatsFactory, tmp_path: Path
) -> None:
    server = nats_server()
    await provision(server.url)
    (nowhere,) = free_ports(1)
    away = S3Settings(endpoint=f"127.0.0.1:{nowhere}", bucket="missing")
    async with running(server.url, away, tmp_path, has_s3=False) as store:
        await store.publish(events.requested(0), events.recorded(0), events.graded(0))

        async def is_graded() -> bool:
            return (await store.ledger()).by_state.get("graded") == 1

        await until(is_graded)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await store.api.GetTrajectory(
                pb.GetTrajectoryRequest(trajectory_id=events.episode_id(0)), timeout=30
            )
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "object store" in str(refused.value.details())
        page = await store.api.ListTrajectories(pb.ListTrajectoriesRequest())
        assert page.trajectories[0].quarantine_reason == "", "an outage is no corruption"


async def test_a_full_disk_holds_facts_back_until_there_is_room(
    nats_server: NatsFactory, sqlite_db: Database
) -> None:
    db, index = sqlite_db, SqlIndex(sqlite_db)
    server = nats_server()
    await provision(server.url)
    bus = EventBus(BusSettings(url=server.url), client_name="test", timings=FAST)
    (ledger,) = ledger_router(index, on_change=lambda: None, batch_size=50).projections
    router, is_full = EventRouter(), asyncio.Event()

    @router.projection(ledger.spec, ledger.handlers, batch_size=ledger.batch_size)
    async def fold(batch: Sequence[tuple[Delivery[Any], Any]]) -> None:
        try:
            await ledger.fold(batch)
        except StoreFull:
            is_full.set()
            raise

    bus.include_router(router)

    async def pragma(text: str) -> int:
        return int(await db.run(lambda connection: connection.exec_driver_sql(text).scalar_one()))

    await pragma(f"PRAGMA max_page_count={await pragma('PRAGMA page_count')}")
    await bus.start()
    for number in range(200):
        await bus.publish(events.requested(number), model=events.MODEL, event_id=f"requested/{number}")
    await asyncio.wait_for(is_full.wait(), 60)
    assert (await index.ledger("", 0)).requested < 200
    await pragma("PRAGMA max_page_count=1000000")

    async def all_there() -> bool:
        return (await index.ledger("", 0)).requested == 200

    await until(all_there)
    await bus.stop()
