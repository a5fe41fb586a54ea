"""The alarms of the monitors of reward hacks, and reviews of people, which the trajectory store keeps."""

from collections.abc import Sequence
from datetime import datetime

import grpc

from checkpoint_registry.domain.open_alarms import OpenAlarm, OpenAlarms
from grpc_edge import Peer
from upcycle.api.trajectory.v1 import service_pb2
from upcycle.api.trajectory.v1.service_pb2_grpc import TrajectoryServiceStub
from upcycle.moments import timestamp
from upcycle.rpc import peer_errors

IDEMPOTENT = ("ListAlarms", "ListReviews")
_MAX_RUNS = 100
"""Of one request: what the store takes."""


class GrpcRewardAlarms:
    """Implements ports.RewardAlarms."""

    def __init__(self, peer: Peer) -> None:
        self._stub = TrajectoryServiceStub(peer.channel)

    async def open_alarms(self, run_ids: Sequence[str], seen_until: datetime) -> OpenAlarms:
        """A store of a version without monitors has none. Raises Unavailable."""
        alarms, unseen = list[OpenAlarm](), ""
        for first in range(0, len(run_ids), _MAX_RUNS):
            found = await self._of_some(run_ids[first : first + _MAX_RUNS], seen_until)
            alarms += found.alarms
            unseen = unseen or found.unseen
        return OpenAlarms(tuple(alarms), unseen)

    async def _of_some(self, run_ids: Sequence[str], seen_until: datetime) -> OpenAlarms:
        request = service_pb2.ListAlarmsRequest(
            run_ids=run_ids, only_open=True, seen_until=timestamp(seen_until)
        )
        with peer_errors("read the alarms of the run's monitors", ()):
            try:
                reply = await self._stub.ListAlarms(request)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return OpenAlarms()
                raise
        alarms = tuple(OpenAlarm(one.run_id, one.kind, one.text) for one in reply.alarms)
        return OpenAlarms(alarms, reply.unseen)

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
