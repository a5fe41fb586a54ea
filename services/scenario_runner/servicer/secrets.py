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
        stored = await self._secrets.put(request.name, request.value, current_caller())
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


def _to_wire(secret: StoredSecret) -> pb.Secret:
    return pb.Secret(name=secret.name, set_by=secret.set_by, set_at=timestamp(secret.set_at))
