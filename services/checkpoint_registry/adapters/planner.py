"""The planner's TasksetService, as the use cases need it."""

from collections.abc import Iterator
from contextlib import contextmanager

from checkpoint_registry import wire
from checkpoint_registry.domain.errors import PeerRefused
from checkpoint_registry.domain.runs import EvaluationOrder, EvaluationRun, TasksetView
from grpc_edge import Peer
from upcycle.api.taskset.v1 import service_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
from upcycle.rpc import RemoteNotFound, RemoteRefused, peer_errors

IDEMPOTENT = ("CancelRun", "GetRun", "GetTaskset", "ListRuns", "SubmitRun")
"""SubmitRun too: the same request_id is the same run."""


class GrpcTasksets:
    """The planner behind gRPC."""

    def __init__(self, peer: Peer) -> None:
        self._stub = TasksetServiceStub(peer.channel)

    async def run(self, run_id: str, *, include_results: bool = False) -> EvaluationRun | None:
        """A run with its results, if asked for; None: no such run."""
        request = service_pb2.GetRunRequest(run_id=run_id, include_results=include_results)
        try:
            with _peer_errors(f"read run {run_id}"):
                return wire.run_from_wire(await self._stub.GetRun(request))
        except _NotThere:
            return None

    async def taskset(self, name: str) -> TasksetView | None:
        """A taskset by name or name@revision; None: no such taskset."""
        try:
            with _peer_errors(f"read taskset {name!r}"):
                response = await self._stub.GetTaskset(service_pb2.GetTasksetRequest(name=name))
        except _NotThere:
            return None
        return wire.taskset_from_wire(response.taskset)

    async def submit(self, order: EvaluationOrder) -> str:
        """Submit an evaluation run; the run's id."""
        with _peer_errors(f"submit {order.label}"):
            response = await self._stub.SubmitRun(wire.order_to_wire(order))
        return response.run.run_id

    async def cancel(self, run_id: str, reason: str) -> None:
        """End a run; one that is over stays as it is."""
        with _peer_errors(f"cancel run {run_id}"):
            await self._stub.CancelRun(service_pb2.CancelRunRequest(run_id=run_id, reason=reason))

    async def pinned_versions(self) -> set[tuple[str, int]]:
        """(model, version) that runs which are not over are pinned to."""
        with _peer_errors("list the runs that are not over"):
            response = await self._stub.ListRuns(service_pb2.ListRunsRequest(unfinished=True))
        return {pinned for run in response.runs for pinned in wire.pinned_by(run.spec)}


class _NotThere(PeerRefused):
    """The planner has nothing of that name."""


@contextmanager
def _peer_errors(what: str) -> Iterator[None]:
    try:
        with peer_errors(what, (RemoteNotFound, RemoteRefused)):
            yield
    except RemoteNotFound as error:
        raise _NotThere(str(error)) from error
    except RemoteRefused as error:
        raise PeerRefused(str(error)) from error
