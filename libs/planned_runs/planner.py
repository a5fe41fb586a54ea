"""Asks the planner about runs: whether one ended, of which model it is, and which of a model are not over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grpc_edge import Peer
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
from upcycle.rpc import RemoteNotFound, peer_errors
from upcycle.run_client import is_over

if TYPE_CHECKING:  # only the stubs know the asynchronous classes
    from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceAsyncStub

_ASK_S: Final = 10.0


class PlannedRuns:
    """Runs as the planner has them."""

    IDEMPOTENT = ("GetRun", "ListRuns")

    def __init__(self, tasksets: Peer) -> None:
        self._stub: TasksetServiceAsyncStub = TasksetServiceStub(tasksets.channel)
        self._address = tasksets.address

    async def run(self, run_id: str) -> taskset_pb2.Run | None:
        """The run as it is now; None for one that the planner does not know: its database may have been made
        anew. Raises Unavailable."""
        try:
            with peer_errors(f"the planner, about {run_id}, at {self._address}", (RemoteNotFound,)):
                request = service_pb2.GetRunRequest(run_id=run_id)
                reply = await self._stub.GetRun(request, timeout=_ASK_S)
        except RemoteNotFound:
            return None
        return reply.run

    async def open_runs(self, model: str) -> list[taskset_pb2.Run]:
        """Runs of a model that are not over, oldest first. Raises Unavailable."""
        with peer_errors(f"the planner, about runs of {model}, at {self._address}"):
            request = service_pb2.ListRunsRequest(model=model, unfinished=True)
            reply = await self._stub.ListRuns(request, timeout=_ASK_S)
        return [run for run in reply.runs if not is_over(run)]

    async def model_of(self, run_id: str) -> str | None:
        """The model that a run trains; None for a run that the planner does not know. Raises Unavailable."""
        run = await self.run(run_id)
        return None if run is None else run.spec.policy.model
