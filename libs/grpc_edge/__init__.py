"""The gRPC edge: one way to serve, one way to call, errors and deadlines the same everywhere."""

from grpc_edge.client import Peer, connect
from grpc_edge.errors import (
    FAILURE_KIND_KEY,
    RemoteConflict,
    RemoteDenied,
    RemoteError,
    RemoteNotFound,
    RemoteRefused,
    RemoteUnavailable,
    remote_errors,
)
from grpc_edge.limits import MAX_MESSAGE_BYTES
from grpc_edge.server import GrpcServer
from grpc_edge.status import StatusTable, domain_errors_as_status

__all__ = [
    "FAILURE_KIND_KEY",
    "MAX_MESSAGE_BYTES",
    "GrpcServer",
    "Peer",
    "RemoteConflict",
    "RemoteDenied",
    "RemoteError",
    "RemoteNotFound",
    "RemoteRefused",
    "RemoteUnavailable",
    "StatusTable",
    "connect",
    "domain_errors_as_status",
    "remote_errors",
]
