"""A server of one real contract, and its client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from opentelemetry import trace

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from service_kit.deadlines import deadline
from service_kit.errors import StoreFull
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import service_pb2_grpc as rpc
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.errors import Unavailable
from upcycle.rpc import connect, remote_errors

SERVICE = "upcycle.api.taskset.v1.TasksetService"
KEY = "a-valid-key-of-24-chars"


class UnknownRun(LookupError): ...


class RunMoved(Exception): ...


class GateNotPassed(Exception): ...


class HeldOutGateNotPassed(GateNotPassed): ...


STATUS_OF = {
    UnknownRun: grpc.StatusCode.NOT_FOUND,
    RunMoved: grpc.StatusCode.ABORTED,
    GateNotPassed: grpc.StatusCode.FAILED_PRECONDITION,
}


class Tasksets(rpc.TasksetServiceServicer):
    """Does what the run id says."""

    def __init__(self) -> None:
        self.calls = 0
        self.trace_ids: list[int] = []
        self.started, self.finished, self.released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        self.calls += 1
        self.trace_ids.append(trace.get_current_span().get_span_context().trace_id)
        await self._act(request.run_id)
        return pb.GetRunResponse(run=taskset_pb2.Run(run_id=request.run_id))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        raise ZeroDivisionError("a servicer that forgot its table")

    async def WatchRun(self, request: pb.WatchRunRequest, context: Any) -> AsyncIterator[pb.WatchRunResponse]:
        yield pb.WatchRunResponse(run=taskset_pb2.Run(run_id=request.run_id))
        if request.run_id == "waits":
            await self.released.wait()
        await self._act(request.run_id)

    async def PauseRun(self, request: pb.PauseRunRequest, context: Any) -> pb.PauseRunResponse:
        raise Unavailable("the planner's database", retry_after_s=2.0)

    async def StopRun(self, request: pb.StopRunRequest, context: Any) -> pb.StopRunResponse:
        self.trace_ids.append(trace.get_current_span().get_span_context().trace_id)
        raise StoreFull("database planner is full")

    async def _act(self, run_id: str) -> None:
        match run_id:
            case "missing":
                raise UnknownRun(f"run {run_id!r} is not known; `upcycle runs` lists them")
            case "moved":
                raise RunMoved("expected v3, head is v4")
            case "gate":
                raise HeldOutGateNotPassed("0.61 [0.52, 0.69] is not above head's 0.60")
            case "verbose":
                raise GateNotPassed("x" * 100_000)
            case "bug":
                raise RuntimeError("password=hunter2hunter2")
            case "nested-timeout":
                async with deadline("the lease of engine e1", 0.01):
                    await asyncio.sleep(1)
            case "slow":
                self.started.set()
                await asyncio.sleep(0.6)
                self.finished.set()


@pytest.fixture
async def tasksets() -> Tasksets:
    return Tasksets()  # type: ignore[abstract] # its other rpcs answer UNIMPLEMENTED


@pytest.fixture
async def server(tasksets: Tasksets) -> AsyncIterator[GrpcServer]:
    made = GrpcServer("127.0.0.1", 0, OPEN, default_deadline_s=0.2, grace_s=30.0)
    made.add(rpc.add_TasksetServiceServicer_to_server, tasksets, STATUS_OF)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def stub(server: GrpcServer) -> "AsyncIterator[rpc.TasksetServiceAsyncStub]":
    async with connect(server.address, default_timeout_s=30, idempotent=["GetRun"]) as channel:
        yield rpc.TasksetServiceStub(channel)


async def get(stub: "rpc.TasksetServiceAsyncStub", run_id: str) -> str:
    with remote_errors(f"get {run_id}"):
        return str((await stub.GetRun(pb.GetRunRequest(run_id=run_id))).run.run_id)
