"""RetentionService over the sweeps of one service, ReferenceService over what it refers to."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import grpc.aio

from retention.sweeps import MAX_RUNS, Reference, RetentionSweep, SweepOrder, SweepReport, checked_age
from service_kit.errors import InvalidRequest
from upcycle.api.retention.v1 import service_pb2 as pb
from upcycle.api.retention.v1.service_pb2_grpc import ReferenceServiceServicer, RetentionServiceServicer

Context = grpc.aio.ServicerContext[Any, Any]


Find = Callable[[Mapping[str, str], bool], Awaitable[Sequence[Reference]]]
"""Runs by id, each with its model or "", and whether those that are not needed are released, to references.
Raises Unavailable."""


class ReferenceServicer(ReferenceServiceServicer):
    """See proto/upcycle/api/retention/v1/service.proto."""

    def __init__(self, find: Find, *, now: Callable[[], datetime]) -> None:
        self._find = find
        self._now = now

    async def ListReferences(
        self, request: pb.ListReferencesRequest, context: Context
    ) -> pb.ListReferencesResponse:
        """Which of these runs are needed."""
        if len(request.run_ids) > MAX_RUNS:
            raise InvalidRequest(f"run_ids has {len(request.run_ids)} entries, limit {MAX_RUNS}")
        runs = {run_id: request.models.get(run_id, "") for run_id in request.run_ids}
        found = await self._find(runs, request.release)
        response = pb.ListReferencesResponse(
            references=[
                pb.RunReference(run_id=one.run_id, why=one.why, only_trained=one.only_trained)
                for one in found
            ]
        )
        response.now.FromDatetime(self._now())
        return response


class RetentionServicer(RetentionServiceServicer):
    """See proto/upcycle/api/retention/v1/service.proto."""

    def __init__(self, sweeps: Mapping[str, RetentionSweep]) -> None:
        """sweeps: by what they remove."""
        self._sweeps = sweeps

    async def SweepRetention(
        self, request: pb.SweepRetentionRequest, context: Context
    ) -> pb.SweepRetentionResponse:
        """One batch."""
        if request.what not in self._sweeps:
            raise InvalidRequest(f"what is {request.what!r:.80}, expected one of {sorted(self._sweeps)}")
        age = checked_age(request.older_than_s) if request.HasField("older_than_s") else None
        report = await self._sweeps[request.what](SweepOrder(request.apply, age, request.after))
        return report_to_wire(report)


def report_to_wire(report: SweepReport) -> pb.SweepRetentionResponse:
    """As it travels."""
    response = pb.SweepRetentionResponse(
        policy=report.policy,
        number=report.number,
        size_bytes=report.size_bytes,
        kept=report.kept,
        next=report.next,
    )
    if report.oldest is not None:
        response.oldest.FromDatetime(report.oldest)
    return response
