"""TrainingService: what the trainer is doing, and what it can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import grpc.aio

from grpc_edge import StatusTable, domain_errors_as_status
from grpo_math.advantages import ADVANTAGES
from grpo_math.objective import LOSSES
from grpo_trainer import views
from grpo_trainer.domain.errors import UnknownSession
from grpo_trainer.usecases.sessions import Sessions
from upcycle.api.training.v1 import service_pb2 as pb
from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceServicer

STATUS_OF: Final[StatusTable] = {UnknownSession: grpc.StatusCode.NOT_FOUND}
_LONGEST_SILENCE_S: Final = 5.0

Context = grpc.aio.ServicerContext[Any, Any]


class TrainingServicer(TrainingServiceServicer):
    """See proto/upcycle/api/training/v1/service.proto."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        """One session as it is now."""
        async with domain_errors_as_status(context, STATUS_OF):
            return pb.GetSessionResponse(session=views.find(self._sessions, request.run_id))

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """Every run that this trainer knows, refused ones included."""
        async with domain_errors_as_status(context, STATUS_OF):
            return pb.ListSessionsResponse(sessions=views.every(self._sessions))

    async def WatchSession(
        self, request: pb.WatchSessionRequest, context: Context
    ) -> AsyncIterator[pb.WatchSessionResponse]:
        """The session now, then at each change of its phase, and every few seconds; ends with the session."""
        async with domain_errors_as_status(context, STATUS_OF):
            view = views.find(self._sessions, request.run_id)
            yield pb.WatchSessionResponse(session=view)
            while view.state not in views.FINAL:
                session = self._sessions.get(request.run_id)
                async with session.changed:
                    try:
                        await asyncio.wait_for(session.changed.wait(), _LONGEST_SILENCE_S)
                    except TimeoutError:
                        view = views.find(self._sessions, request.run_id)  # a sign of life
                view = views.find(self._sessions, request.run_id)
                yield pb.WatchSessionResponse(session=view)

    async def ListLosses(self, request: pb.ListLossesRequest, context: Context) -> pb.ListLossesResponse:
        """Names that a training configuration may use."""
        async with domain_errors_as_status(context, STATUS_OF):
            return pb.ListLossesResponse(losses=sorted(LOSSES), advantages=sorted(ADVANTAGES))
