"""TrainingService: what the trainer is doing, what it can do, and interactive training."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import Message

from grpc_edge import StatusTable
from grpo_math.advantages import ADVANTAGES
from grpo_math.objective import LOSSES
from grpo_trainer import views
from grpo_trainer.domain import errors
from grpo_trainer.interactive import wire
from grpo_trainer.interactive.session import InteractiveSession
from grpo_trainer.interactive.sessions import InteractiveSessions
from grpo_trainer.runs.sessions import RunSessions
from grpo_trainer.shown_sessions import Context, Reach, ShownSessions
from upcycle.api.training.v1 import service_pb2 as pb
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceServicer
from upcycle.errors import Unavailable
from upcycle.rpc import connect

T = TypeVar("T")

STATUS_OF: Final[StatusTable] = {
    errors.UnknownSession: grpc.StatusCode.NOT_FOUND,
    errors.UnknownModel: grpc.StatusCode.NOT_FOUND,
    errors.UnknownTrajectory: grpc.StatusCode.NOT_FOUND,
    errors.UnknownForward: grpc.StatusCode.NOT_FOUND,
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.InvalidTrainingSpec: grpc.StatusCode.INVALID_ARGUMENT,
    errors.StaleForward: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NothingAccumulated: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LostGradients: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LostSteps: grpc.StatusCode.ABORTED,
    errors.ModelBusy: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Diverged: grpc.StatusCode.FAILED_PRECONDITION,
    errors.HeadMoved: grpc.StatusCode.ABORTED,
    errors.LineageTaken: grpc.StatusCode.ABORTED,
    errors.OldState: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BrokenArtifact: grpc.StatusCode.DATA_LOSS,
}
_LONGEST_SILENCE_S: Final = 5.0
_ASK_AGAIN_S: Final = 1.0


class TrainingServicer(TrainingServiceServicer):
    """See proto/upcycle/api/training/v1/service.proto."""

    def __init__(
        self, sessions: RunSessions, interactive: InteractiveSessions, *, reach: Reach = connect
    ) -> None:
        """reach: how another trainer is asked."""
        self._sessions = sessions
        self._interactive = interactive
        self._shown = ShownSessions(sessions, interactive.views, reach=reach)

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        """One session as it is now, and what its newest steps measured; of another trainer, asked there."""
        return await self._shown.one(request, context)

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """Every run that this trainer knows, refused ones included, and every interactive session."""
        return self._shown.every()

    async def WatchSession(
        self, request: pb.WatchSessionRequest, context: Context
    ) -> AsyncIterator[pb.WatchSessionResponse]:
        """The session now, then at each change of its phase, and every few seconds; ends with the session,
        of an interactive session with the call."""
        asked = pb.GetSessionRequest(run_id=request.run_id)
        view = (await self.GetSession(asked, context)).session
        yield pb.WatchSessionResponse(session=view)
        while view.state not in views.FINAL:
            await self._change(view)
            with suppress(Unavailable):  # of the trainer that holds it: the view is as old as it is
                view = (await self.GetSession(asked, context)).session
            yield pb.WatchSessionResponse(session=view)

    async def _change(self, view: training.TrainingSession) -> None:
        """Wait until a session of this process changed, or for a while."""
        changed, silence_s = self._interactive.changed, _LONGEST_SILENCE_S
        if view.kind != training.SESSION_KIND_INTERACTIVE:
            try:
                changed = self._sessions.get(view.run_id).changed
            except errors.UnknownSession:  # another trainer's: it is asked again
                silence_s = _ASK_AGAIN_S
        async with changed:
            with suppress(TimeoutError):  # then it is a sign of life
                await asyncio.wait_for(changed.wait(), silence_s)

    async def ListLosses(self, request: pb.ListLossesRequest, context: Context) -> pb.ListLossesResponse:
        """Names that a training configuration, or an interactive pass, may use."""
        if request.model:
            await self._interactive.deps.heads.head(request.model)
        return pb.ListLossesResponse(losses=sorted(LOSSES), advantages=sorted(ADVANTAGES))

    async def _once(
        self, request: Any, work: Callable[[InteractiveSession], Awaitable[T]], *, remember: bool = True
    ) -> T:
        """The result of a request about a model; a repeated request gets the same result."""
        return await self._interactive.once(
            request.model, request.request_id, _digest(request), work, remember=remember
        )

    async def Forward(self, request: pb.ForwardRequest, context: Context) -> pb.ForwardResponse:
        """Log-probabilities under the weights of now, for a loss of the caller's."""
        asked = wire.forward_from_wire(request)
        forward_id, version, data = await self._once(
            request, lambda session: session.forward(asked), remember=False
        )
        return pb.ForwardResponse(forward_id=forward_id, version=version, data=map(wire.datum_to_wire, data))

    async def ForwardBackward(
        self, request: pb.ForwardBackwardRequest, context: Context
    ) -> pb.ForwardBackwardResponse:
        """Adds the gradient of a built-in loss."""
        asked, request_id = wire.pass_from_wire(request), request.request_id
        measured = await self._once(request, lambda session: session.forward_backward(request_id, asked))
        return wire.measured_to_wire(measured)

    async def Backward(self, request: pb.BackwardRequest, context: Context) -> pb.BackwardResponse:
        """Adds the gradient that the caller worked out."""
        weights = wire.weights_from_wire(request.weights)
        request_id, forward_id, metrics = request.request_id, request.forward_id, dict(request.metrics)
        measured = await self._once(
            request, lambda session: session.backward(request_id, forward_id, weights, metrics)
        )
        return pb.BackwardResponse(metrics=wire.finite(measured.metrics), num_datums=measured.num_datums)

    async def OptimStep(self, request: pb.OptimStepRequest, context: Context) -> pb.OptimStepResponse:
        """Updates, saves, publishes and promotes."""
        update, request_id = wire.update_from_wire(request), request.request_id
        done = await self._once(request, lambda session: session.optim_step(request_id, update))
        return pb.OptimStepResponse(result=wire.step_to_wire(done))

    async def Step(self, request: pb.StepRequest, context: Context) -> pb.StepResponse:
        """ForwardBackward and OptimStep."""
        asked, request_id = wire.pass_from_wire(request), request.request_id
        update = wire.update_of_step(request)
        measured, done = await self._once(request, lambda session: session.step(request_id, asked, update))
        return pb.StepResponse(
            result=wire.step_to_wire(done),
            metrics=wire.finite(measured.metrics),
            num_datums=measured.num_datums,
        )


def _digest(request: Message) -> bytes:
    """Of the content of a request: equal requests, equal digests."""
    named = request.DESCRIPTOR.full_name.encode()
    return hashlib.sha256(named + request.SerializeToString(deterministic=True)).digest()
