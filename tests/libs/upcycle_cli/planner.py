"""A planner that says what a test wants, and notes what it was asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.api.taskset.v1.service_pb2_grpc import (
    TasksetServiceServicer,
    add_TasksetServiceServicer_to_server,
)
from upcycle.platform import PEERS, Addresses

NOWHERE = "127.0.0.1:1"


def evaluation(run_id: str, taskset: str = "sums", model: str = "m") -> ts.Run:
    """An evaluation that is over."""
    spec = ts.RunSpec(taskset=taskset, purpose=common.PURPOSE_EVAL, policy=common.PolicySelector(model=model))
    return ts.Run(run_id=run_id, spec=spec, state=ts.RUN_STATE_COMPLETED)


def training(run_id: str, **fields: Any) -> ts.Run:
    """A training run of model m on sums that is going; fields replace those of the message."""
    spec = ts.RunSpec(
        taskset="sums",
        purpose=common.PURPOSE_TRAIN,
        policy=common.PolicySelector(model="m"),
        training=ts.TrainingConfig(steps=100, prompts_per_step=4),
    )
    return ts.Run(**{"run_id": run_id, "spec": spec, "state": ts.RUN_STATE_RUNNING, **fields})


class Planner(TasksetServiceServicer):
    """runs: by id, newest first in lists; tasksets: split by name; watched: what WatchRun says of any run.
    What is registered is revision 3 of its name. refusal: of each run that is submitted, with its
    status. results: of any run, at first one solved task."""

    def __init__(self) -> None:
        self.runs: list[ts.Run] = []
        self.tasksets = {"sums": common.SPLIT_TRAIN, "judge": common.SPLIT_HELD_OUT}
        self.registered: list[str] = []
        self.sent: list[ts.Taskset] = []
        self.submitted: list[pb.SubmitRunRequest] = []
        self.answer: ts.Run | None = None
        self.watched: list[ts.Run] = []
        self.refusal = ""
        self.status = grpc.StatusCode.FAILED_PRECONDITION
        graded = ts.EPISODE_STATUS_GRADED
        self.results = [ts.EpisodeResult(task_slug="a", status=graded, reward=1.0, success=True)]

    async def RegisterTaskset(self, request: Any, context: Any) -> pb.RegisterTasksetResponse:
        self.registered.append(request.taskset.name)
        self.sent.append(request.taskset)
        return pb.RegisterTasksetResponse(name=request.taskset.name, revision=3)

    async def GetTaskset(self, request: Any, context: Any) -> pb.GetTasksetResponse:
        return pb.GetTasksetResponse()

    async def ListTasksets(self, request: Any, context: Any) -> pb.ListTasksetsResponse:
        rows = [ts.Taskset(name=name, split=split) for name, split in self.tasksets.items()]
        return pb.ListTasksetsResponse(tasksets=rows)

    async def GetRun(self, request: Any, context: Any) -> pb.GetRunResponse:
        found = [run for run in (*self.runs, *self.watched[-1:]) if run.run_id == request.run_id]
        if not found:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no run {request.run_id}")
        return pb.GetRunResponse(run=found[0], results=self.results if request.include_results else [])

    async def ListRuns(self, request: Any, context: Any) -> pb.ListRunsResponse:
        final = (ts.RUN_STATE_COMPLETED, ts.RUN_STATE_FAILED, ts.RUN_STATE_CANCELLED)
        listed = [run for run in self.runs if not (request.unfinished and run.state in final)]
        return pb.ListRunsResponse(runs=listed)

    async def SubmitRun(self, request: Any, context: Any) -> pb.SubmitRunResponse:
        if self.refusal:
            await context.abort(self.status, self.refusal)
        self.submitted.append(request)
        run = ts.Run(run_id="run-new", spec=request.spec, state=ts.RUN_STATE_RUNNING)
        return pb.SubmitRunResponse(run=self.answer or run)

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[pb.WatchRunResponse]:
        for run in self.watched:
            yield pb.WatchRunResponse(run=run)
            await asyncio.sleep(0.05)


@asynccontextmanager
async def serving(planner: Planner) -> AsyncIterator[Addresses]:
    """Addresses of a platform of which the planner alone answers."""
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1).add(add_TasksetServiceServicer_to_server, planner)
    await server.start()
    peers = {**dict.fromkeys(PEERS, NOWHERE), "tasksets": server.address}
    try:
        yield Addresses(peers, "the test")
    finally:
        await server.stop()
