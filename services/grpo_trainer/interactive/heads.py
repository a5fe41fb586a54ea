"""Reads and moves the head of a model in the registry."""

from __future__ import annotations

import logging
from typing import Final

from grpc_edge import Peer
from grpo_trainer import wire
from grpo_trainer.adapters.boundaries import lookup, peer
from grpo_trainer.domain.errors import InvalidTrainingSpec, UnknownModel
from grpo_trainer.interactive.state import Head
from upcycle.api.registry.v1 import service_pb2 as registry_pb2
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteConflict, RemoteNotFound, RemoteRefused

log = logging.getLogger(__name__)

_ACTOR: Final = "interactive training"
_GATE_DECIDES: Final = "GATE_DECIDES"


class RegistryHeads:
    """Heads over gRPC."""

    IDEMPOTENT = ("GetModel", "GetCheckpoint")

    def __init__(self, registry: Peer) -> None:
        self._stub = RegistryServiceStub(registry.channel)
        self._what = f"the registry at {registry.address}"

    async def head(self, model: str) -> Head:
        """The head of a model. Raises UnknownModel; Unavailable."""
        with lookup(self._what, f"model {model!r} is not registered", UnknownModel):
            reply = await self._stub.GetModel(registry_pb2.GetModelRequest(model=model))
        return Head(wire.base_from_wire(reply.head), reply.model.head_revision, reply.model.head_set_revision)

    async def holds(self, model: str, checkpoint_id: str) -> bool:
        """Whether the registry has recorded the checkpoint. Raises Unavailable."""
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
        """Move head by compare-and-set; returns the new revision, None if head is at another revision or the
        model has a gate, which decides.

        Raises Unavailable, also until the registry has recorded the checkpoint.
        """
        request = registry_pb2.SetHeadRequest(
            model=model,
            checkpoint_id=checkpoint_id,
            expected_revision=expected_revision,
            actor=_ACTOR,
            reason=reason,
            unless_gated=True,
        )
        try:
            with peer(self._what, passing=(RemoteNotFound, RemoteConflict, RemoteRefused)):
                reply = await self._stub.SetHead(request)
        except RemoteNotFound as error:  # the registry records checkpoints when it receives checkpoint.saved
            raise Unavailable(f"{checkpoint_id} to be recorded: {error}") from error
        except RemoteConflict:  # our own earlier request may have moved it, and its answer was lost
            head = await self.head(model)
            return head.revision if head.checkpoint_id == checkpoint_id else None
        except RemoteRefused as error:
            if error.reason != _GATE_DECIDES:
                raise InvalidTrainingSpec(str(error)) from error
            log.info("head_left_to_gate", extra={"model": model, "checkpoint_id": checkpoint_id})
            return None
        revision: int = reply.move.revision
        return revision
