"""Asks the planner whether a run is over."""

from typing import TYPE_CHECKING, Final

from upcycle.api.taskset.v1 import service_pb2
from upcycle.rpc import RemoteNotFound, peer_errors
from upcycle.run_client import is_over

if TYPE_CHECKING:
    # The type of an async stub exists for type checkers only.
    from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceAsyncStub

_ASK_S: Final = 10.0


class GrpcPlannedRuns:
    """Runs as the planner has them. Raises Unavailable."""

    IDEMPOTENT = ("GetRun",)

    def __init__(self, tasksets: "TasksetServiceAsyncStub") -> None:
        self._stub = tasksets

    async def is_over(self, run_id: str) -> bool:
        """Whether the planner ended the run; False for one that it does not know: its database may have been
        made anew."""
        try:
            with peer_errors(f"the planner, about {run_id}", (RemoteNotFound,)):
                reply = await self._stub.GetRun(service_pb2.GetRunRequest(run_id=run_id), timeout=_ASK_S)
        except RemoteNotFound:
            return False
        return is_over(reply.run)
