"""A planner that answers GetRun and ListRuns over gRPC, and what asks it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from grpc_edge import GrpcServer, Peer
from grpc_edge.access import OPEN
from planned_runs import PlannedRuns
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import (
    TasksetServiceServicer,
    add_TasksetServiceServicer_to_server,
)

RUNNING, CANCELLED = taskset_pb2.RUN_STATE_RUNNING, taskset_pb2.RUN_STATE_CANCELLED
COMPLETED = taskset_pb2.RUN_STATE_COMPLETED


class Planner(TasksetServiceServicer):
    """Breaks where it has no state for a run that it knows."""

    def __init__(self, model: str, states: dict[str, Any]) -> None:
        self.model, self.states = model, states
        self.asked: list[str] = []
        self.listed: list[taskset_pb2.Run] = []

    async def GetRun(self, request: Any, context: Any) -> service_pb2.GetRunResponse:
        self.asked.append(request.run_id)
        if request.run_id not in self.states:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no run {request.run_id}")
        if self.states[request.run_id] is None:
            await context.abort(grpc.StatusCode.INTERNAL, "a bug")
        run = taskset_pb2.Run(run_id=request.run_id, state=self.states[request.run_id])
        run.spec.policy.model = self.model
        return service_pb2.GetRunResponse(run=run)

    async def ListRuns(self, request: Any, context: Any) -> service_pb2.ListRunsResponse:
        """As one of before the field `unfinished`: also runs that are over."""
        of_model = [run for run in self.listed if run.spec.policy.model == request.model]
        return service_pb2.ListRunsResponse(runs=of_model)


def planner_of(model: str, states: dict[str, Any]) -> Planner:
    """The generated base class declares every rpc abstract, and answers those that are left out."""
    return Planner(model, states)  # type: ignore[abstract]


@asynccontextmanager
async def asking(planner: Planner) -> AsyncIterator[PlannedRuns]:
    """Over a connection of its own."""
    server = GrpcServer("127.0.0.1", 0, OPEN)
    server.add(add_TasksetServiceServicer_to_server, planner, {})
    await server.start()
    peer = Peer("tasksets", server.address, idempotent=PlannedRuns.IDEMPOTENT)
    await peer.start()
    yield PlannedRuns(peer)
    await peer.stop()
    await server.stop()
