"""SecretService: decode, use case, encode. No answer holds a value."""

from typing import Any

import grpc.aio

from grpc_edge.access import current_caller
from scenario_runner.domain.secrets import StoredSecret
from scenario_runner.usecases.secrets import ManageSecrets
from upcycle.api.secrets.v1 import service_pb2 as pb
from upcycle.api.secrets.v1.service_pb2_grpc import SecretServiceServicer
from upcycle.moments import timestamp

Context = grpc.aio.ServicerContext[Any, Any]


class SecretServicer(SecretServiceServicer):
    """See proto/upcycle/api/secrets/v1/service.proto."""

    def __init__(self, secrets: ManageSecrets) -> None:
        self._secrets = secrets

    async def SetSecret(self, request: pb.SetSecretRequest, context: Context) -> pb.SetSecretResponse:
        """A new one, or another value."""
        allowed, caller = list(request.environments), current_caller()
        stored = await self._secrets.put(request.name, request.value, allowed, caller)
        return pb.SetSecretResponse(secret=_to_wire(stored))

    async def ListSecrets(self, request: pb.ListSecretsRequest, context: Context) -> pb.ListSecretsResponse:
        """By name."""
        return pb.ListSecretsResponse(secrets=map(_to_wire, await self._secrets.listed()))

    async def RemoveSecret(
        self, request: pb.RemoveSecretRequest, context: Context
    ) -> pb.RemoveSecretResponse:
        """Servers that name it start no more."""
        await self._secrets.remove(request.name, current_caller())
        return pb.RemoveSecretResponse()

    async def RotateSecrets(
        self, request: pb.RotateSecretsRequest, context: Context
    ) -> pb.RotateSecretsResponse:
        """Old keys are needed no more after this."""
        done = await self._secrets.rotate(current_caller())
        return pb.RotateSecretsResponse(
            num_rotated=done.num_rotated, num_secrets=done.num_secrets, key_id=done.key_id
        )


def _to_wire(secret: StoredSecret) -> pb.Secret:
    return pb.Secret(
        name=secret.name,
        set_by=secret.set_by,
        set_at=timestamp(secret.set_at),
        environments=secret.environments,
    )
