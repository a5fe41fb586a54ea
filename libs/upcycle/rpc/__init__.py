"""How every client calls the platform over gRPC: channels with deadlines, and typed errors."""

from upcycle.rpc.channels import connect
from upcycle.rpc.errors import (
    FAILURE_KIND_KEY,
    REFUSALS,
    CallTimedOut,
    RemoteConflict,
    RemoteDenied,
    RemoteError,
    RemoteNotFound,
    RemoteRefused,
    peer_errors,
    remote_errors,
)
from upcycle.rpc.limits import MAX_MESSAGE_BYTES

__all__ = [
    "FAILURE_KIND_KEY",
    "MAX_MESSAGE_BYTES",
    "REFUSALS",
    "CallTimedOut",
    "RemoteConflict",
    "RemoteDenied",
    "RemoteError",
    "RemoteNotFound",
    "RemoteRefused",
    "connect",
    "peer_errors",
    "remote_errors",
]
