"""Asks the planner whether a run is over."""

from __future__ import annotations

from grpc_edge import Peer
from upcycle.api.taskset.v1 import service_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
from upcycle.rpc import RemoteNotFound, peer_errors
from upcycle.run_client import is_over


class PlannedRuns:
    """Runs as the planner has them."""

    IDEMPOTENT = ("GetRun",)

    def __init__(self, tasksets: Peer) -> None:
        self._stub = TasksetServiceStub(tasksets.channel)
        self._address = tasksets.address

    async def is_over(self, run_id: str) -> bool:
        """Whether the planner ended the run; False for one that it does not know: its database may have been
        made anew. Raises Unavailable."""
        try:
            with peer_errors(f"the planner at {self._address}", (RemoteNotFound,)):
                reply = await self._stub.GetRun(service_pb2.GetRunRequest(run_id=run_id))
        except RemoteNotFound:
            return False
        return is_over(reply.run)
