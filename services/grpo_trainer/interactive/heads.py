"""The head of a model: read from the registry, and moved there."""

from __future__ import annotations

from typing import Final

from grpc_edge import Peer
from grpo_trainer import wire
from grpo_trainer.adapters.boundaries import lookup, peer
from grpo_trainer.domain.errors import UnknownModel
from grpo_trainer.interactive.state import Head
from upcycle.api.registry.v1 import service_pb2 as registry_pb2
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteConflict, RemoteNotFound

_ACTOR: Final = "interactive training"


class RegistryHeads:
    """See deps.Heads."""

    def __init__(self, registry: Peer) -> None:
        self._stub = RegistryServiceStub(registry.channel)
        self._what = f"the registry at {registry.address}"

    async def head(self, model: str) -> Head:
        """See deps.Heads."""
        with lookup(self._what, f"model {model!r} is not registered", UnknownModel):
            reply = await self._stub.GetModel(registry_pb2.GetModelRequest(model=model))
        return Head(wire.base_from_wire(reply.head), reply.model.head_revision)

    async def holds(self, model: str, checkpoint_id: str) -> bool:
        """See deps.Heads."""
        request = registry_pb2.GetCheckpointRequest(model=model, checkpoint_id=checkpoint_id)
        try:
            with peer(self._what, passing=(RemoteNotFound,)):
                await self._stub.GetCheckpoint(request)
        except RemoteNotFound:
            return False
        return True

    async def promote(
        self, model: str, checkpoint_id: str, *, expected_revision: int, reason: str
    ) -> int | None:
        """See deps.Heads."""
        request = registry_pb2.SetHeadRequest(
            model=model,
            checkpoint_id=checkpoint_id,
            expected_revision=expected_revision,
            actor=_ACTOR,
            reason=reason,
        )
        try:
            with peer(self._what, passing=(RemoteNotFound, RemoteConflict)):
                reply = await self._stub.SetHead(request)
        except RemoteNotFound as error:  # it hears of the checkpoint by an event
            raise Unavailable(f"{checkpoint_id} to be recorded: {error}") from error
        except RemoteConflict:  # perhaps it was our own request, whose answer never came
            head = await self.head(model)
            return head.revision if head.checkpoint_id == checkpoint_id else None
        revision: int = reply.move.revision
        return revision
