"""Claims tasks as training data at the planner."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from grpc_edge import Peer
from grpo_trainer.domain.errors import HeldOutInput, InvalidInput
from upcycle.api.taskset.v1 import service_pb2 as taskset_pb2
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub
from upcycle.rpc import RemoteError, peer_errors
from upcycle.task_rows import MAX_CLAIMED


class PlannerClaims:
    """Claims tasks at the planner."""

    IDEMPOTENT = ("ClaimTasks",)

    def __init__(self, tasksets: Peer) -> None:
        self._stub = TasksetServiceStub(tasksets.channel)
        self._address = tasksets.address

    async def claim(
        self, digests: Sequence[str], claimed_by: str, source_run_ids: Sequence[str] = ()
    ) -> None:
        """Claim tasks for good, and keep the runs that they were played in from retention for a day; safe to
        repeat. Raises HeldOutInput if the planner holds one of them out; InvalidInput, also for a run that
        was released; Unavailable."""
        for at in range(0, max(len(digests), len(source_run_ids)), MAX_CLAIMED):
            request = taskset_pb2.ClaimTasksRequest(
                task_digests=digests[at : at + MAX_CLAIMED],
                claimed_by=claimed_by,
                source_run_ids=source_run_ids[at : at + MAX_CLAIMED],
            )
            try:
                with peer_errors(f"the planner at {self._address}"):
                    await self._stub.ClaimTasks(request)
            except RemoteError as error:
                is_held_out = error.code is grpc.StatusCode.FAILED_PRECONDITION
                raise (HeldOutInput if is_held_out else InvalidInput)(str(error)) from error
