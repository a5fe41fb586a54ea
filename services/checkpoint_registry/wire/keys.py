"""Keys: protobuf <-> domain."""

from checkpoint_registry.domain.keys import ApiKey, KeyOrder
from grpc_edge.issued_keys import ValidKeys
from upcycle.api.keys.v1 import service_pb2 as pb
from upcycle.moments import timestamp


def key_to_wire(key: ApiKey) -> pb.ApiKey:
    """Without its hash."""
    message = pb.ApiKey(
        key_id=key.key_id,
        name=key.name,
        role=key.role,
        scopes=key.scopes,
        created_by=key.created_by,
        created_at=timestamp(key.created_at),
        revoked_by=key.revoked_by,
    )
    for name in ("expires_at", "revoked_at", "last_used_at"):
        if (moment := getattr(key, name)) is not None:
            getattr(message, name).CopyFrom(timestamp(moment))
    return message


def order_from_wire(request: pb.CreateKeyRequest) -> KeyOrder:
    """What is asked for, unchecked."""
    expires_in_s = request.expires_in_s if request.HasField("expires_in_s") else None
    return KeyOrder(request.name, request.role, tuple(request.scopes), expires_in_s)


def valid_keys_to_wire(valid: ValidKeys) -> pb.ListValidKeysResponse:
    """For another server."""
    keys = [
        pb.ValidKey(
            sha256=sha256,
            key_id=key.key_id,
            name=key.name,
            role=key.role,
            scopes=sorted(key.scopes),
            created_at=timestamp(key.created_at),
            expires_at=None if key.expires_at is None else timestamp(key.expires_at),
        )
        for sha256, key in valid.keys.items()
    ]
    return pb.ListValidKeysResponse(digest=valid.digest, keys=keys, revoked_sha256=sorted(valid.revoked))
