"""The head of a model: read from the registry, and moved there."""

from __future__ import annotations

from typing import Final

from grpc_edge import (
    Peer,
    RemoteConflict,
    RemoteError,
    RemoteNotFound,
    RemoteUnavailable,
    remote_errors,
)
from grpo_trainer import wire
from grpo_trainer.domain.errors import InvalidTrainingSpec, UnknownModel, Waiting
from grpo_trainer.domain.hands import Head
from grpo_trainer.domain.states import BasePolicy
from upcycle.api.registry.v1 import service_pb2 as registry_pb2
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub

_ACTOR: Final = "training by hand"


class RegistryHeads:
    """See ports.Heads."""

    def __init__(self, registry: Peer) -> None:
        self._stub = RegistryServiceStub(registry.channel)
        self._what = f"the registry at {registry.address}"

    async def head(self, model: str) -> Head:
        """See ports.Heads."""
        try:
            with remote_errors(self._what):
                reply = await self._stub.GetModel(registry_pb2.GetModelRequest(model=model))
        except RemoteUnavailable as error:
            raise Waiting(str(error)) from error
        except RemoteNotFound as error:
            raise UnknownModel(f"model {model!r} is not registered: {error}") from error
        except RemoteError as error:
            raise InvalidTrainingSpec(str(error)) from error
        head = reply.head
        base = BasePolicy(head.version, head.checkpoint_id, wire.body_from_wire(head.manifest))
        return Head(base, reply.model.head_revision)

    async def holds(self, model: str, checkpoint_id: str) -> bool:
        """See ports.Heads."""
        request = registry_pb2.GetCheckpointRequest(model=model, checkpoint_id=checkpoint_id)
        try:
            with remote_errors(self._what):
                await self._stub.GetCheckpoint(request)
        except RemoteUnavailable as error:
            raise Waiting(str(error)) from error
        except RemoteNotFound:
            return False
        except RemoteError as error:
            raise InvalidTrainingSpec(str(error)) from error
        return True

    async def promote(self, model: str, checkpoint_id: str, *, expected_revision: int, reason: str) -> bool:
        """See ports.Heads."""
        if (await self.head(model)).checkpoint_id == checkpoint_id:
            return True
        request = registry_pb2.SetHeadRequest(
            model=model,
            checkpoint_id=checkpoint_id,
            expected_revision=expected_revision,
            actor=_ACTOR,
            reason=reason,
        )
        try:
            with remote_errors(self._what):
                await self._stub.SetHead(request)
        except (RemoteUnavailable, RemoteNotFound) as error:  # it hears of the checkpoint by an event
            raise Waiting(f"{checkpoint_id} to be recorded: {error}") from error
        except RemoteConflict:
            return (await self.head(model)).checkpoint_id == checkpoint_id
        except RemoteError as error:
            raise InvalidTrainingSpec(str(error)) from error
        return True
