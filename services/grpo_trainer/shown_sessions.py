"""Sessions as TrainingService answers about them: of this process, of the trainer that holds the run, or of
the past. Needs no torch, so the simulator serves the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import grpc
import grpc.aio

from grpo_trainer import views
from grpo_trainer.domain.errors import UnknownSession
from grpo_trainer.interactive.state import InteractiveView
from grpo_trainer.runs.sessions import RunSessions
from upcycle.api.training.v1 import service_pb2 as pb
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import connect

PASS_ON_S: Final = 0.4
"""How long another trainer may take to answer: less than `why` waits for this one."""
_PASSED_ON: Final = "x-upcycle-passed-on"
"""Of a call that another trainer passed on: it goes no further."""

Context = grpc.aio.ServicerContext[Any, Any]
Reach = Callable[[str], AbstractAsyncContextManager[grpc.aio.Channel]]
"""A channel to an address."""


class ShownSessions:
    """Answers GetSession and ListSessions."""

    def __init__(
        self,
        sessions: RunSessions,
        interactive: Callable[[], Sequence[InteractiveView]] = tuple,
        *,
        reach: Reach = connect,
    ) -> None:
        """interactive: the interactive sessions as they are now. reach: how another trainer is asked."""
        self._sessions = sessions
        self._interactive = interactive
        self._reach = reach

    async def one(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        """One session as it is now, and what its newest steps measured; of another trainer, asked there.
        Raises UnknownSession, Unavailable."""
        if (reply := await self._asked_elsewhere(request, context)) is not None:
            return reply
        view = await self._shown(request.run_id)
        steps = views.steps(self._sessions, request.run_id, request.num_steps, self._interactive())
        return pb.GetSessionResponse(session=view, steps=steps)

    def every(self) -> pb.ListSessionsResponse:
        """Every run that this trainer knows, refused ones included, and every interactive session."""
        return pb.ListSessionsResponse(sessions=views.every(self._sessions, self._interactive()))

    async def _asked_elsewhere(
        self, request: pb.GetSessionRequest, context: Context
    ) -> pb.GetSessionResponse | None:
        """The answer of the trainer that holds the run; None where that is this one, or none. Raises
        Unavailable where it does not answer: this one knows nothing of the run's groups and steps."""
        other = self._sessions.holder_of(request.run_id)
        is_passed_on = any(key == _PASSED_ON for key, _ in context.invocation_metadata() or ())
        if other is None or not other.address or is_passed_on:
            return None
        try:
            async with self._reach(other.address) as channel:
                return await TrainingServiceStub(channel).GetSession(
                    request, metadata=((_PASSED_ON, "1"),), timeout=PASS_ON_S
                )
        except grpc.aio.AioRpcError as error:
            what = f"trainer {other.name} at {other.address}, which holds run {request.run_id}"
            raise Unavailable(f"{what}: {error.code().name}") from error

    async def _shown(self, run_id: str) -> training.TrainingSession:
        try:
            return views.find(self._sessions, run_id, self._interactive())
        except UnknownSession:
            return await views.stored(self._sessions, run_id)
