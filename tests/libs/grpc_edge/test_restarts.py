"""Calls while the server stops, is gone, and comes back."""

import asyncio

import grpc
import pytest
from tests.chaos.proxy import Link, LinkMode
from tests.libs.grpc_edge.conftest import Tasksets, get
from tests.support.waiting import until

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from grpc_edge.limits import RpcLimits, server_options
from service_kit.deadlines import deadline
from service_kit.groups import EdgeSettings
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import service_pb2_grpc as rpc
from upcycle.errors import Unavailable
from upcycle.rpc import CallTimedOut, connect, remote_errors
from upcycle.rpc.limits import client_options


async def test_an_idempotent_call_survives_a_restart_of_the_server(tasksets: Tasksets) -> None:
    first = await _serve(tasksets, 0)
    async with connect(first.address, default_timeout_s=10, idempotent=["GetRun"]) as channel:
        stub = rpc.TasksetServiceStub(channel)
        await get(stub, "one")
        await first.stop()
        call = asyncio.create_task(get(stub, "two"))
        refused = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        await until(lambda: channel.get_state() is refused, "an attempt that finds no server")
        assert not call.done()
        second = await _serve(tasksets, first.port)

        assert await call == "two"
        await second.stop()


async def test_a_call_that_is_not_idempotent_fails_at_once(tasksets: Tasksets) -> None:
    gone = await _serve(tasksets, 0)
    await gone.stop()

    async with connect(gone.address, default_timeout_s=10) as channel:
        with pytest.raises(Unavailable, match="UNAVAILABLE") as failed:
            await get(rpc.TasksetServiceStub(channel), "one")
        assert not isinstance(failed.value, CallTimedOut)


async def test_a_server_that_is_slow_to_greet_is_waited_for(server: GrpcServer) -> None:
    """Also by a call that is sent once only: a machine at work is late to answer a connection."""

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        host, _, port = server.address.rpartition(":")
        upstream, onward = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pass_on(reader, onward), _pass_on(upstream, writer))

    relay = await asyncio.start_server(slowly, "127.0.0.1", 0)
    address = f"127.0.0.1:{relay.sockets[0].getsockname()[1]}"
    async with connect(address) as channel:
        assert await get(rpc.TasksetServiceStub(channel), "one") == "one"
    relay.close()
    await relay.wait_closed()


async def _pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while data := await source.read(4096):
        to.write(data)
    to.close()


async def test_retries_end_with_the_deadline(tasksets: Tasksets) -> None:
    gone = await _serve(tasksets, 0)
    await gone.stop()

    async with connect(gone.address, default_timeout_s=0.5, idempotent=["GetRun"]) as channel:
        with pytest.raises(Unavailable):
            await get(rpc.TasksetServiceStub(channel), "one")


async def _serve(tasksets: Tasksets, port: int) -> GrpcServer:
    server = GrpcServer("127.0.0.1", port, OPEN).add(rpc.add_TasksetServiceServicer_to_server, tasksets)
    await server.start()
    return server


async def test_a_call_in_flight_is_finished_before_the_server_stops(
    server: GrpcServer, stub: "rpc.TasksetServiceAsyncStub", tasksets: Tasksets
) -> None:
    call = asyncio.create_task(get(stub, "slow"))
    await tasksets.started.wait()
    await server.stop()

    assert tasksets.finished.is_set()
    assert await call == "slow"
    assert server.ready() == "not listening"


async def test_a_stream_from_a_peer_that_fell_silent_ends_unavailable(tasksets: Tasksets) -> None:
    """A frozen process and a partition refuse nothing: only pings tell. The stream itself has no deadline."""
    server = await _serve(tasksets, 0)
    host, _, port = server.address.rpartition(":")
    link = Link("client", "planner", [(host, int(port))])
    await link.serve()
    async with connect(link.address) as channel:
        stream = rpc.TasksetServiceStub(channel).WatchRun(pb.WatchRunRequest(run_id="waits"))
        await anext(aiter(stream))
        link.set(LinkMode.SILENT)
        with pytest.raises(Unavailable), remote_errors("watch"):
            async with deadline("a silent peer to be noticed", 35.0):
                await anext(aiter(stream))
    tasksets.released.set()
    await link.close()
    await server.stop()


def test_no_client_pings_more_often_than_a_server_allows() -> None:
    """A server resets a connection after three pings that came too early. 0.3.0 allowed one each 10 s."""
    pings = dict(client_options(1))["grpc.keepalive_time_ms"]
    limits = RpcLimits.of(EdgeSettings.model_construct())
    allowed = dict(server_options(1, limits))["grpc.http2.min_recv_ping_interval_without_data_ms"]
    assert int(pings) > max(int(allowed), 10_000)
