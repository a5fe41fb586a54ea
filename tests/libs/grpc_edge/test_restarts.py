"""Calls while the server stops, is gone, and comes back."""

import asyncio

import grpc
import pytest
from tests.libs.grpc_edge.conftest import Tasksets, get
from tests.support.waiting import until

from grpc_edge import GrpcServer
from upcycle.api.taskset.v1 import service_pb2_grpc as rpc
from upcycle.errors import Unavailable
from upcycle.rpc import CallTimedOut, connect


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


async def test_retries_end_with_the_deadline(tasksets: Tasksets) -> None:
    gone = await _serve(tasksets, 0)
    await gone.stop()

    async with connect(gone.address, default_timeout_s=0.5, idempotent=["GetRun"]) as channel:
        with pytest.raises(Unavailable):
            await get(rpc.TasksetServiceStub(channel), "one")


async def _serve(tasksets: Tasksets, port: int) -> GrpcServer:
    server = GrpcServer("127.0.0.1", port).add(rpc.add_TasksetServiceServicer_to_server, tasksets)
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
