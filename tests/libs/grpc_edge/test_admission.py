"""Limits of a server: calls at once, of all and of one peer; requests that do not come, answers not read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import SecretStr
from tests.libs.grpc_edge.conftest import KEY, STATUS_OF, Tasksets, get
from tests.support.waiting import until

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN, Access
from grpc_edge.admission import peer_of
from grpc_edge.limits import RpcLimits
from service_kit.groups import AccessSettings, EdgeSettings
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import service_pb2_grpc as rpc
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.errors import Unavailable
from upcycle.rpc import connect, remote_errors


@asynccontextmanager
async def serving(tasksets: Tasksets, access: Access = OPEN, **limits: Any) -> AsyncIterator[GrpcServer]:
    server = GrpcServer("127.0.0.1", 0, access, limits=RpcLimits.of(EdgeSettings(**limits)), grace_s=0.1)
    server.add(rpc.add_TasksetServiceServicer_to_server, tasksets, STATUS_OF)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def watching(channel: grpc.aio.Channel) -> Any:
    """A watcher that got its first message and waits for more."""
    call = rpc.TasksetServiceStub(channel).WatchRun(pb.WatchRunRequest(run_id="waits"))
    assert await call.read() is not grpc.aio.EOF
    return call


async def test_calls_beyond_the_limit_of_all_are_refused_by_its_name_and_places_come_back(
    tasksets: Tasksets,
) -> None:
    async with serving(tasksets, rpcs=2) as server, connect(server.address) as channel:
        stub = rpc.TasksetServiceStub(channel)
        held = [await watching(channel) for _ in range(2)]
        with (
            pytest.raises(Unavailable, match=r"limit of 2 calls at once.*UPCYCLE_EDGE_RPCS"),
            remote_errors("get"),
        ):
            await stub.GetRun(pb.GetRunRequest(run_id="ok"))
        assert (await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())).status == 1
        held[0].cancel()
        async with connect(server.address, idempotent=["GetRun"]) as retrying:
            assert await get(rpc.TasksetServiceStub(retrying), "ok") == "ok"
        held[1].cancel()


async def test_one_peer_does_not_take_the_places_of_all(tasksets: Tasksets) -> None:
    async with (
        serving(tasksets, rpcs_per_peer=1) as server,
        connect(server.address) as first,
        connect(server.address) as second,
    ):
        held = await watching(first)
        with (
            pytest.raises(Unavailable, match=r"127.0.0.1 has 1 calls.*UPCYCLE_EDGE_RPCS_PER_PEER"),
            remote_errors("get"),
        ):
            await rpc.TasksetServiceStub(second).GetRun(pb.GetRunRequest(run_id="ok"))
        held.cancel()


async def test_a_proxy_in_front_speaks_for_many_peers(tasksets: Tasksets) -> None:
    async with (
        serving(tasksets, rpcs_per_peer=1, front="10.0.0.1, 127.0.0.1") as server,
        connect(server.address) as channel,
    ):
        held = await watching(channel)
        assert await get(rpc.TasksetServiceStub(channel), "ok") == "ok"
        held.cancel()


async def test_watchers_of_health_are_counted_apart_from_calls(tasksets: Tasksets) -> None:
    async with (
        serving(tasksets, keyless_rpcs_per_peer=2, keyless_rpcs=3) as server,
        connect(server.address) as channel,
        connect(server.address) as other,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for watch in watches:
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="UPCYCLE_EDGE_KEYLESS_RPCS_PER_PEER"):
            await health_pb2_grpc.HealthStub(other).Check(health_pb2.HealthCheckRequest())
        assert await get(rpc.TasksetServiceStub(channel), "ok") == "ok"
        for watch in watches:
            watch.cancel()


async def test_a_call_whose_request_does_not_come_gives_its_place_back(tasksets: Tasksets) -> None:
    async with serving(tasksets, rpcs=1, body_s=0.2) as server, connect(server.address) as channel:
        silent: Any = channel.stream_unary("/upcycle.api.taskset.v1.TasksetService/GetRun")()
        async with connect(server.address, idempotent=["GetRun"]) as retrying:
            assert await get(rpc.TasksetServiceStub(retrying), "ok") == "ok"
        silent.cancel()


async def test_a_health_check_without_a_request_is_counted_and_ended(tasksets: Tasksets) -> None:
    async with (
        serving(tasksets, keyless_rpcs_per_peer=1, body_s=3) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        silent: Any = channel.stream_unary("/grpc.health.v1.Health/Check")()
        health = health_pb2_grpc.HealthStub(channel)

        async def refused() -> bool:
            try:
                await health.Check(health_pb2.HealthCheckRequest())
            except grpc.aio.AioRpcError as error:
                return "UPCYCLE_EDGE_KEYLESS_RPCS_PER_PEER" in str(error.details())
            return False

        await until(refused, "the silent call to be counted")
        assert await silent.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "UPCYCLE_EDGE_BODY_S" in await silent.details()


async def test_strangers_do_not_take_the_places_of_callers(tasksets: Tasksets) -> None:
    keys = Access.of(AccessSettings(open=False, operator_key=SecretStr(KEY)))
    async with (
        serving(tasksets, keys, rpcs=1, keyless_rpcs=1) as server,
        connect(server.address) as strange,
        connect(server.address, api_key=KEY) as known,
    ):
        method = "/upcycle.api.taskset.v1.TasksetService/GetRun"
        silent: list[Any] = [strange.stream_unary(method)() for _ in range(3)]
        assert await get(rpc.TasksetServiceStub(known), "ok") == "ok"
        for call in silent:
            call.cancel()


class Endless(Tasksets):
    """Watchers get large messages without end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    async def WatchRun(self, request: pb.WatchRunRequest, context: Any) -> AsyncIterator[pb.WatchRunResponse]:
        try:
            while True:
                yield pb.WatchRunResponse(run=taskset_pb2.Run(run_id="x" * (1 << 20)))
        finally:
            self.ended.set()


async def test_a_stream_whose_client_does_not_read_is_ended() -> None:
    endless = Endless()  # type: ignore[abstract] # its other rpcs answer UNIMPLEMENTED
    async with serving(endless, stall_s=0.3) as server, grpc.aio.insecure_channel(server.address) as channel:
        call = rpc.TasksetServiceStub(channel).WatchRun(pb.WatchRunRequest(run_id="x"))
        await call.read()
        await until(endless.ended.is_set, "the stream to end")
        while await _reads(call):
            pass
        assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "UPCYCLE_EDGE_STALL_S" in await call.details()


async def _reads(call: Any) -> bool:
    try:
        return await call.read() is not grpc.aio.EOF
    except grpc.aio.AioRpcError:
        return False


@pytest.mark.parametrize(
    ("address", "peer"),
    [("ipv4:10.0.0.7:4711", "10.0.0.7"), ("ipv6:[::1]:4711", "[::1]"), ("unix:/run/a:b", "unix:/run/a:b")],
)
def test_a_peer_is_its_host(address: str, peer: str) -> None:
    assert peer_of(address) == peer
