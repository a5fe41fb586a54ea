"""A trajectory store on a real bus, object store and gRPC, and what tests do to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import Message
from tests.services.trajectory_store import events

from blob_store import BlobRef, S3BlobStore
from event_bus import BusSettings, BusTimings, EventBus
from identities import objects
from service_kit.groups import PeerSettings, S3Settings, ServerAccessSettings, SqlSettings
from service_kit.ports import free_ports
from trajectory_body import pack
from trajectory_store.app import build_app
from trajectory_store.settings import TrajectoryStoreSettings
from upcycle.api.training.v1.events_pb2 import GroupSettled
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceStub
from upcycle.rpc import connect

if TYPE_CHECKING:
    from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceAsyncStub


FAST = BusTimings(connect_s=30, drain_s=1, close_s=1, first_retry_s=0.05)


def body_of(number: int, run: str = "run-1") -> trajectory_pb2.TrajectoryBody:
    call = trajectory_pb2.ToolCall(call_id="c0", name="search_logs", arguments_json='{"q": "oom"}')
    return trajectory_pb2.TrajectoryBody(
        episode=events.identity(number, run=run),
        prompt=[trajectory_pb2.Message(role="user", content="Why is checkout down?")],
        turns=[
            trajectory_pb2.Turn(
                new_prompt_ids=[1, 2],
                sampled_ids=[3, 4],
                sampled_logprobs=[-0.5, -0.25],
                tool_calls=[call],
                tool_results=[trajectory_pb2.ToolResult(call_id="c0", content="oom killed ☠")],
            ),
            trajectory_pb2.Turn(new_prompt_ids=[5], sampled_ids=[6], sampled_logprobs=[-0.1], text="OOM"),
        ],
        answer="OOM",
    )


@dataclass
class Store:
    """A running store, and what its peers would have."""

    bus: EventBus
    blobs: S3BlobStore
    api: "TrajectoryServiceAsyncStub"
    address: str

    async def publish(self, *messages: Message) -> None:
        for message in messages:
            author = "trainer" if isinstance(message, GroupSettled) else ""
            await self.bus.publish(
                message,
                model=events.MODEL,
                event_id=f"test/{hash(message.SerializeToString())}",
                author=author,
            )

    async def keep_body(self, number: int, run: str = "run-1") -> BlobRef:
        body = body_of(number, run)
        key = objects.trajectory_body(run, body.episode.episode_id)
        return await self.blobs.put(key, pack(body))

    async def ledger(self, run: str = "run-1") -> pb.GetLedgerResponse:
        return await self.api.GetLedger(pb.GetLedgerRequest(run_id=run, include_unsettled=True))


@asynccontextmanager
async def running(
    nats_url: str,
    s3: S3Settings,
    folder: Path,
    *,
    has_s3: bool = True,
    peers: PeerSettings | None = None,
    access: ServerAccessSettings | None = None,
) -> AsyncIterator[Store]:
    grpc_port, http_port = free_ports(2)
    settings = TrajectoryStoreSettings(
        grpc_port=grpc_port,
        http_port=http_port,
        check_idle_s=0.05,
        watch_poll_s=0.2,
        drain_s=10,
        bus=BusSettings(url=nats_url),
        s3=s3,
        sql=SqlSettings(data_dir=folder),
        peers=peers or PeerSettings(),
        access=access or ServerAccessSettings(),
    )
    service = build_app(settings)
    bus = EventBus(BusSettings(url=nats_url), client_name="test", timings=BusTimings(connect_s=30, drain_s=1))
    blobs = S3BlobStore(s3)
    await service.start()
    await bus.start()
    if has_s3:
        await blobs.start()
    channel = connect(f"127.0.0.1:{grpc_port}")
    try:
        yield Store(bus, blobs, TrajectoryServiceStub(channel), f"127.0.0.1:{grpc_port}")
    finally:
        await channel.close()
        await bus.stop()
        await service.stop()
        await blobs.stop()
