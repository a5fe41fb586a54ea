"""The audit log of a service: entries with whose call made the change, and AuditService to read them."""

from typing import Any, Final

import grpc.aio
from sqlalchemy import Connection

from grpc_edge.access import current_caller, current_rpc
from service_kit.clock import utc_now
from service_kit.errors import InvalidRequest
from sql_store import Database
from sql_store.audit import AuditEntry, add_entry, entries
from upcycle.api.audit.v1 import service_pb2 as audit_pb
from upcycle.api.audit.v1.service_pb2_grpc import AuditServiceServicer
from upcycle.moments import moment_of, timestamp

Context = grpc.aio.ServicerContext[Any, Any]
MAX_PAGE: Final = 1000


def audited(connection: Connection, what: str, outcome: str, *, digest: str = "", by: str) -> None:
    """Note a change with the running transaction of `Database.run`. what: the thing, as `model incident`. by:
    what decided, where no call did."""
    rpc, caller = current_rpc(), current_caller()
    who, name = (caller.principal, caller.name) if rpc else (by, by)
    add_entry(connection, AuditEntry(utc_now(), who, name, rpc, what, digest, outcome))


class AuditServicer(AuditServiceServicer):
    """See proto/upcycle/api/audit/v1/service.proto."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def ListEntries(
        self, request: audit_pb.ListEntriesRequest, context: Context
    ) -> audit_pb.ListEntriesResponse:
        """One page."""
        if not 1 <= request.limit <= MAX_PAGE:
            raise InvalidRequest(f"limit is {request.limit}, expected 1 to {MAX_PAGE}")
        since = moment_of(request.since) if request.HasField("since") else None
        found = await entries(
            self._database, since=since, who=request.who, after=request.after, limit=request.limit
        )
        return audit_pb.ListEntriesResponse(
            entries=map(_to_wire, found), next=found[-1].number if len(found) == request.limit else 0
        )


def _to_wire(entry: AuditEntry) -> audit_pb.AuditEntry:
    fields = {name: getattr(entry, name) for name in AuditEntry.__slots__ if name != "at"}
    return audit_pb.AuditEntry(at=timestamp(entry.at), **fields)
