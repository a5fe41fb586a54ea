"""Asks the planner about runs: whether one is over, and of which model it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grpc_edge import Peer
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
from upcycle.rpc import RemoteNotFound, peer_errors
from upcycle.run_client import completed, is_over

if TYPE_CHECKING:  # only the stubs know the asynchronous classes
    from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceAsyncStub

_ASK_S: Final = 10.0


class PlannedRuns:
    """Runs as the planner has them."""

    IDEMPOTENT = ("GetRun",)

    def __init__(self, tasksets: Peer) -> None:
        self._stub: TasksetServiceAsyncStub = TasksetServiceStub(tasksets.channel)
        self._address = tasksets.address

    async def is_over(self, run_id: str) -> bool:
        """Whether the planner ended the run; False for one that it does not know: its database may have been
        made anew. Raises Unavailable."""
        run = await self._run(run_id)
        return run is not None and is_over(run)

    async def is_completed(self, run_id: str) -> bool:
        """Whether the run ended as completed. Raises Unavailable."""
        run = await self._run(run_id)
        return run is not None and completed(run)

    async def model_of(self, run_id: str) -> str | None:
        """The model that a run trains; None for a run that the planner does not know. Raises Unavailable."""
        run = await self._run(run_id)
        return None if run is None else run.spec.policy.model

    async def _run(self, run_id: str) -> taskset_pb2.Run | None:
        try:
            with peer_errors(f"the planner at {self._address}", (RemoteNotFound,)):
                request = service_pb2.GetRunRequest(run_id=run_id)
                reply = await self._stub.GetRun(request, timeout=_ASK_S)
        except RemoteNotFound:
            return None
        return reply.run
