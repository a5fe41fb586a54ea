"""The server's side of gRPC: one way to serve, one table from error to status. Clients use `upcycle.rpc`."""

from grpc_edge.peer import Peer
from grpc_edge.server import GrpcServer
from grpc_edge.status import StatusTable, domain_errors_as_status

__all__ = ["GrpcServer", "Peer", "StatusTable", "domain_errors_as_status"]
