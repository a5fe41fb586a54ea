"""TrajectoryService: decode, use case, encode."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import grpc
import grpc.aio

from grpc_edge import StatusTable
from grpc_edge.access import with_caller
from identities.entities import trajectory_id
from service_kit.errors import InvalidRequest
from trajectory_store.adapters.sql_index import SqlIndex
from trajectory_store.domain.errors import (
    AlreadyImported,
    BodyCorrupt,
    BodyRemoved,
    TrajectoryRemoved,
    UnknownAlarm,
    UnknownTrajectory,
)
from trajectory_store.usecases.importing import ImportTrajectories
from trajectory_store.usecases.reading import (
    ExportChunk,
    ExportTrajectories,
    GetTrajectory,
    ListTrajectories,
    WatchTrajectories,
)
from trajectory_store.usecases.reviewing import ReviewRewards
from trajectory_store.wire import hacks, views
from trajectory_store.wire.export_lines import record_line, triple_line
from trajectory_store.wire.imports import imports_from_wire
from upcycle.api.trajectory.v1 import service_pb2 as pb
from upcycle.api.trajectory.v1 import service_pb2_grpc
from upcycle.moments import moment_of

Context = grpc.aio.ServicerContext[Any, Any]

STATUS_OF: Final[StatusTable] = {
    UnknownTrajectory: grpc.StatusCode.NOT_FOUND,
    UnknownAlarm: grpc.StatusCode.NOT_FOUND,
    BodyCorrupt: grpc.StatusCode.DATA_LOSS,
    BodyRemoved: grpc.StatusCode.FAILED_PRECONDITION,
    TrajectoryRemoved: grpc.StatusCode.FAILED_PRECONDITION,
    AlreadyImported: grpc.StatusCode.ALREADY_EXISTS,
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
}
_DEFAULT_PAGE: Final = 100
_MAX_PAGE: Final = 1000
_MAX_UNSETTLED: Final = 1000
_MAX_EXPORT_MESSAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class UseCases:
    """What the service can do."""

    index: SqlIndex
    get: GetTrajectory
    list: ListTrajectories
    watch: WatchTrajectories
    export: ExportTrajectories
    import_client_graded: ImportTrajectories
    reviews: ReviewRewards


class TrajectoryServicer(service_pb2_grpc.TrajectoryServiceServicer):
    """The public API."""

    def __init__(self, usecases: UseCases, *, now: Callable[[], datetime]) -> None:
        self._do = usecases
        self._now = now

    async def GetTrajectory(
        self, request: pb.GetTrajectoryRequest, context: Context
    ) -> pb.GetTrajectoryResponse:
        """Summary and body."""
        episode, body = await self._do.get(request.trajectory_id)
        return pb.GetTrajectoryResponse(summary=views.summary_to_wire(episode), body=body)

    async def ListTrajectories(
        self, request: pb.ListTrajectoriesRequest, context: Context
    ) -> pb.ListTrajectoriesResponse:
        """A page, newest first."""
        size = min(request.page_size or _DEFAULT_PAGE, _MAX_PAGE)
        if size < 0:
            raise InvalidRequest(f"page_size is {size}, expected 1..{_MAX_PAGE} or 0")
        wanted, after = views.filter_from_wire(request.filter), views.page_key(request.page_token)
        page, following = await self._do.list(wanted, after, size)
        return pb.ListTrajectoriesResponse(
            trajectories=map(views.summary_to_wire, page), next_page_token=views.page_token(following)
        )

    async def WatchTrajectories(
        self, request: pb.WatchTrajectoriesRequest, context: Context
    ) -> AsyncIterator[pb.WatchTrajectoriesResponse]:
        """Changes, until the caller goes."""
        after = request.after_position if request.HasField("after_position") else None
        async for change in self._do.watch(views.filter_from_wire(request.filter), after):
            yield pb.WatchTrajectoriesResponse(
                trajectory=views.summary_to_wire(change.episode), position=change.position
            )

    async def ExportTrajectories(
        self, request: pb.ExportTrajectoriesRequest, context: Context
    ) -> AsyncIterator[pb.ExportTrajectoriesResponse]:
        """JSON lines, in messages of about a megabyte."""
        if request.format not in _LINE_OF:
            raise InvalidRequest("format is not set: choose TRIPLES or RECORDS")
        async for chunk in self._do.export(views.filter_from_wire(request.filter)):
            for message in await asyncio.to_thread(_messages, chunk, request.format):
                yield message

    async def GetLedger(self, request: pb.GetLedgerRequest, context: Context) -> pb.GetLedgerResponse:
        """The conservation equation."""
        if len(request.episode_ids) > _MAX_UNSETTLED:
            raise InvalidRequest(f"{len(request.episode_ids)} episode_ids, at most {_MAX_UNSETTLED} at once")
        num_unsettled = _MAX_UNSETTLED if request.include_unsettled else 0
        ledger = await self._do.index.ledger(request.run_id, num_unsettled, only=request.episode_ids)
        return views.ledger_to_wire(ledger, self._now())

    async def ImportTrajectories(
        self, request: pb.ImportTrajectoriesRequest, context: Context
    ) -> pb.ImportTrajectoriesResponse:
        """What a client played and graded."""
        ids = await self._do.import_client_graded(imports_from_wire(request))
        return pb.ImportTrajectoriesResponse(trajectory_ids=ids)

    async def ListAlarms(self, request: pb.ListAlarmsRequest, context: Context) -> pb.ListAlarmsResponse:
        """Of the monitors of reward hacks."""
        unseen = ""
        if request.HasField("seen_until"):  # asked first: what is seen by then is in the alarms
            unseen = await self._do.reviews.unseen(request.run_ids, moment_of(request.seen_until))
        alarms = await self._do.reviews.alarms(request.run_ids, only_open=request.only_open)
        return pb.ListAlarmsResponse(alarms=map(hacks.alarm_to_wire, alarms), unseen=unseen)

    async def DismissAlarm(
        self, request: pb.DismissAlarmRequest, context: Context
    ) -> pb.DismissAlarmResponse:
        """A person says that it is none."""
        by = with_caller(request.by)
        kept = await self._do.reviews.dismiss(request.run_id, request.kind, by, request.note)
        return pb.DismissAlarmResponse(alarm=hacks.alarm_to_wire(kept))

    async def ReviewTrajectory(
        self, request: pb.ReviewTrajectoryRequest, context: Context
    ) -> pb.ReviewTrajectoryResponse:
        """A person's verdict."""
        verdict = hacks.verdict_from_wire(request.verdict)
        review, quarantined = await self._do.reviews.review(
            request.trajectory_id, verdict, with_caller(request.reviewer), request.note
        )
        ids = [trajectory_id(one.identity.episode_id) for one in quarantined]
        return pb.ReviewTrajectoryResponse(review=hacks.review_to_wire(review), quarantined=ids)

    async def ListReviews(self, request: pb.ListReviewsRequest, context: Context) -> pb.ListReviewsResponse:
        """Of a run."""
        found = await self._do.reviews.reviews(request.run_id)
        reply = pb.ListReviewsResponse(reviews=map(hacks.review_to_wire, found))
        if request.top:
            reply.confirmed = await self._do.reviews.num_confirmed(request.run_id, request.top)
        return reply

    async def ListSignatures(
        self, request: pb.ListSignaturesRequest, context: Context
    ) -> pb.ListSignaturesResponse:
        """Of a run."""
        found = await self._do.reviews.signatures(request.run_id)
        return pb.ListSignaturesResponse(batches=map(hacks.batch_to_wire, found))


_LINE_OF: Final = {pb.EXPORT_FORMAT_TRIPLES: triple_line, pb.EXPORT_FORMAT_RECORDS: record_line}


def _messages(chunk: ExportChunk, form: pb.ExportFormat.ValueType) -> list[pb.ExportTrajectoriesResponse]:
    """A chunk's lines, gathered into messages. A triple needs a reward: the ungraded are left out there."""
    line_of = _LINE_OF[form]
    texts: list[bytearray] = [bytearray()]
    for episode, body in chunk.trajectories:
        if form == pb.EXPORT_FORMAT_TRIPLES and episode.grade is None:
            continue
        if len(texts[-1]) > _MAX_EXPORT_MESSAGE_BYTES:
            texts.append(bytearray())
        texts[-1] += line_of(episode, body)
    messages = [pb.ExportTrajectoriesResponse(jsonl=text.decode()) for text in texts]
    messages[-1].quarantined, messages[-1].removed = chunk.quarantined, chunk.removed
    return messages
