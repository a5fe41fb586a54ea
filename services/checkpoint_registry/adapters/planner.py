"""The planner's TasksetService, as the use cases need it."""

from collections.abc import Iterator
from contextlib import contextmanager

from checkpoint_registry.domain.errors import PeerRefused
from checkpoint_registry.domain.runs import EvaluationOrder, EvaluationRun, TasksetView, TrainingLoad
from checkpoint_registry.wire import runs as wire
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

    async def source_now(self, name: str) -> str:
        """Of a taskset by name or name@revision: the digest of the code that would judge a run of it which is
        submitted now; "" where that is not known."""
        request = service_pb2.GetTasksetRequest(name=name, with_summaries=True)
        with _peer_errors(f"read the source of taskset {name!r}"):
            response = await self._stub.GetTaskset(request)
        revision = response.taskset.revision
        return next((one.source_digest for one in response.revisions if one.revision == revision), "")

    async def submit(self, order: EvaluationOrder) -> str:
        """Submit an evaluation run; the run's id."""
        with _peer_errors(f"submit {order.label}"):
            response = await self._stub.SubmitRun(wire.order_to_wire(order))
        return response.run.run_id

    async def unfinished(self, order: EvaluationOrder) -> str:
        """The run that was submitted by this request before, maybe with other figures; "": none is under
        way."""
        request = service_pb2.ListRunsRequest(model=order.model, unfinished=True)
        with _peer_errors(f"list the runs of {order.model}"):
            response = await self._stub.ListRuns(request)
        return next((run.run_id for run in response.runs if wire.is_ordered_by(run.spec, order)), "")

    async def cancel(self, run_id: str, reason: str) -> None:
        """End a run; one that is over stays as it is."""
        with _peer_errors(f"cancel run {run_id}"):
            await self._stub.CancelRun(service_pb2.CancelRunRequest(run_id=run_id, reason=reason))

    async def trainings(self, model: str) -> list[TrainingLoad]:
        """The training runs of a model that sample now."""
        request = service_pb2.ListRunsRequest(model=model, unfinished=True)
        with _peer_errors(f"list the training runs of {model}"):
            response = await self._stub.ListRuns(request)
        return [load for run in response.runs if (load := wire.training_from_wire(run)) is not None]

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
