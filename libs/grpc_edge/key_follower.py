"""Which callers a service knows: the keys of its settings, and those that the registry issued."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from grpc_edge.access import Access
from grpc_edge.issued_keys import IssuedKey, IssuedKeys, KeySource, ValidKeys
from grpc_edge.peer import Peer
from service_kit.background import Worker
from service_kit.groups import AccessSettings
from service_kit.service import Service
from upcycle.api.keys.v1 import service_pb2 as keys_pb
from upcycle.api.keys.v1.service_pb2_grpc import KeyServiceStub
from upcycle.moments import moment_of
from upcycle.rpc import peer_errors

if TYPE_CHECKING:
    from grpc_edge.id_tokens import IdTokens

_CALL_S: Final = 2.0
"""With the pause between two questions it is less than the five seconds after which a revocation holds."""


class RemoteKeys:
    """The registry, asked over gRPC."""

    def __init__(self, registry: Peer) -> None:
        self._stub = KeyServiceStub(registry.channel)

    async def valid_keys(self, known: str, used: Collection[str]) -> ValidKeys | None:
        """None: nothing changed. Raises Unavailable, also for a registry that has no such rpc yet."""
        request = keys_pb.ListValidKeysRequest(known_digest=known, used_key_ids=sorted(used))
        with peer_errors("which keys are valid", ()):
            answer = await self._stub.ListValidKeys(request, timeout=_CALL_S)
        return None if answer.digest == known else valid_keys_from_wire(answer)


def valid_keys_from_wire(answer: keys_pb.ListValidKeysResponse) -> ValidKeys:
    """Protobuf to what a server keeps."""
    keys = {
        one.sha256: IssuedKey(
            one.key_id,
            one.name,
            one.role,
            frozenset(one.scopes),
            moment_of(one.created_at),
            moment_of(one.expires_at) if one.HasField("expires_at") else None,
        )
        for one in answer.keys
    }
    return ValidKeys(answer.digest, keys, frozenset(answer.revoked_sha256))


def follow_keys(service: Service, source: KeySource) -> IssuedKeys:
    """The keys that the registry issued, kept up to date for as long as the service runs."""
    issued = IssuedKeys(source)
    service.add(Worker("issued keys", issued.run, ready=issued.ready))
    return issued


def follow_keys_of(service: Service, settings: AccessSettings, registry: str) -> IssuedKeys:
    """The same, asked from the registry at that address."""
    peer = service.add(Peer("keys", registry, api_key=settings.sent))
    return follow_keys(service, RemoteKeys(peer))


def access_of(service: Service, settings: AccessSettings, registry: str) -> Access:
    """For the gRPC server of a service. One that is open to all follows no keys."""
    if settings.open:
        return Access.of(settings)
    return Access.of(settings, follow_keys_of(service, settings, registry), follow_issuer(service, settings))


def follow_issuer(service: Service, settings: AccessSettings) -> "IdTokens | None":
    """The keys that the settings' issuer signs tokens with, kept up to date; None where there is none."""
    if not settings.oidc_issuer:
        return None
    from grpc_edge.id_tokens import IdTokens, fetch_from  # where it is set: it loads a library

    tokens = IdTokens(settings, fetch_from(settings.oidc_jwks_url))
    service.add(Worker("issuer's keys", tokens.run, ready=tokens.ready))
    return tokens
