"""Holds of policies, from the registry."""

from typing import Final

from grpc_edge import Peer
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.errors import (
    GatewayError,
    NoEngine,
    NoRoom,
    UnknownVersion,
    VersionNotServed,
    VersionRemoved,
)
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteNotFound, RemoteRefused, peer_errors

_HOLDER: Final = "model_gateway"
_TIMEOUT_S: Final = 5.0
_REASONS: Final[dict[str, type[GatewayError]]] = {
    "NO_ENGINE": NoEngine,
    "NO_ROOM": NoRoom,
    "VERSION_REMOVED": VersionRemoved,
}


class RegistryHolds:
    """Asks over gRPC."""

    IDEMPOTENT = ("HoldPolicy",)

    def __init__(self, registry: Peer) -> None:
        self._stub = RegistryServiceStub(registry.channel)

    async def hold(self, target: ModelTarget, ttl_s: float) -> None:
        """Have an engine serve the version. Raises UnknownVersion, VersionRemoved, NoRoom; VersionNotServed
        for what the registry refuses else; NoEngine while it does not answer, or no supervisor runs."""
        request = pb.HoldPolicyRequest(
            model=target.model, version=target.version, ttl_s=ttl_s, holder=_HOLDER
        )
        try:
            with peer_errors(f"hold {target}", (RemoteNotFound, RemoteRefused)):
                await self._stub.HoldPolicy(request, timeout=_TIMEOUT_S)
        except RemoteNotFound as error:
            raise UnknownVersion(f"{target} does not exist: {error.message}", param="model") from error
        except RemoteRefused as error:
            raise _REASONS.get(error.reason, VersionNotServed)(error.message, param="model") from error
        except Unavailable as error:
            raise NoEngine(f"no engine holds {target}, and the registry cannot be asked: {error}") from error
