"""The alarms of the monitors of reward hacks, and reviews of people, which the trajectory store keeps."""

from collections.abc import Sequence

import grpc

from grpc_edge import Peer
from upcycle.api.trajectory.v1 import service_pb2
from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceStub
from upcycle.rpc import peer_errors

IDEMPOTENT = ("ListAlarms", "ListReviews")
_MAX_RUNS = 100


class GrpcRewardAlarms:
    """Implements ports.RewardAlarms."""

    def __init__(self, peer: Peer) -> None:
        self._stub = TrajectoryServiceStub(peer.channel)

    async def open_alarms(self, run_ids: Sequence[str]) -> Sequence[str]:
        """A store of a version without monitors has none. Raises Unavailable."""
        request = service_pb2.ListAlarmsRequest(run_ids=run_ids[-_MAX_RUNS:], only_open=True)
        with peer_errors("read the alarms of the run's monitors", ()):
            try:
                reply = await self._stub.ListAlarms(request)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return ()
                raise
        return [f"{alarm.kind} of run {alarm.run_id}: {alarm.text}" for alarm in reply.alarms]

    async def num_confirmed(self, run_id: str, top: int) -> int:
        """None are, for a store of a version without reviews. Raises Unavailable."""
        with peer_errors("read the reviews of the run's trajectories", ()):
            try:
                reply = await self._stub.ListReviews(service_pb2.ListReviewsRequest(run_id=run_id, top=top))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return 0
                raise
        return reply.confirmed
