"""TrainingService: what the trainer is doing, what it can do, and interactive training."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from grpc_edge import StatusTable
from grpo_math.advantages import ADVANTAGES
from grpo_math.objective import LOSSES
from grpo_trainer import views
from grpo_trainer.domain import errors
from grpo_trainer.interactive import wire
from grpo_trainer.interactive.session import InteractiveSession
from grpo_trainer.interactive.sessions import InteractiveSessions
from grpo_trainer.interactive.state import Update
from grpo_trainer.runs.sessions import RunSessions
from upcycle.api.training.v1 import service_pb2 as pb
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.training.v1.service_pb2_grpc import TrainingServiceServicer, TrainingServiceStub
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
    errors.ModelBusy: grpc.StatusCode.FAILED_PRECONDITION,
    errors.OutOfMemory: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Diverged: grpc.StatusCode.FAILED_PRECONDITION,
    errors.HeadMoved: grpc.StatusCode.ABORTED,
    errors.LineageTaken: grpc.StatusCode.ABORTED,
    errors.BrokenArtifact: grpc.StatusCode.DATA_LOSS,
}
_LONGEST_SILENCE_S: Final = 5.0
_ASK_AGAIN_S: Final = 1.0
_PASS_ON_S: Final = 0.4
"""How long another trainer may take to answer: less than `why` waits for this one."""
_PASSED_ON: Final = "x-upcycle-passed-on"
"""Of a call that another trainer passed on: it goes no further."""

Context = grpc.aio.ServicerContext[Any, Any]


class TrainingServicer(TrainingServiceServicer):
    """See proto/upcycle/api/training/v1/service.proto."""

    def __init__(self, sessions: RunSessions, interactive: InteractiveSessions) -> None:
        self._sessions = sessions
        self._interactive = interactive

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        """One session as it is now, and what its newest steps measured; of another trainer, asked there."""
        if (reply := await self._asked_elsewhere(request, context)) is not None:
            return reply
        view = await self._shown(request.run_id)
        steps = views.steps(self._sessions, request.run_id, request.num_steps, self._interactive.views())
        return pb.GetSessionResponse(session=view, steps=steps)

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """Every run that this trainer knows, refused ones included, and every interactive session."""
        return pb.ListSessionsResponse(sessions=views.every(self._sessions, self._interactive.views()))

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
            async with connect(other.address) as channel:
                return await TrainingServiceStub(channel).GetSession(
                    request, metadata=((_PASSED_ON, "1"),), timeout=_PASS_ON_S
                )
        except grpc.aio.AioRpcError as error:
            what = f"trainer {other.name} at {other.address}, which holds run {request.run_id}"
            raise Unavailable(f"{what}: {error.code().name}") from error

    async def _shown(self, run_id: str) -> training.TrainingSession:
        try:
            return views.find(self._sessions, run_id, self._interactive.views())
        except errors.UnknownSession:
            return await views.stored(self._sessions, run_id)

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
        update = Update(wire.adam_from_wire(request.adam), keep_head=request.keep_head)
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
