"""`upcycle audit-log`: who changed what, as registry and planner noted it."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from upcycle.cli.exits import Exit
from upcycle.cli.holds import seconds
from upcycle.cli.models import print_table
from upcycle.cli.output import JsonFlag, fields_of, print_json
from upcycle.moments import timestamp
from upcycle.platform import PEERS, Platform

if TYPE_CHECKING:
    from upcycle.api.audit.v1.service_pb2 import AuditEntry, ListEntriesRequest
    from upcycle.api.audit.v1.service_pb2_grpc import AuditServiceAsyncStub

_TIMEOUT_S: Final = 10.0
_PAGE: Final = 1000
_DIGEST_CHARS: Final = 12


async def audit_log(*, since: str = "7d", who: str = "", as_json: JsonFlag = False) -> int:
    """Who changed what: heads, models, holds, keys, tasksets, deployed environments, removal of what is old.

    Of the registry and the planner, oldest first. No entry is ever changed or deleted.

    :param since: how far back: 90s, 10m, 2h, 30d; `all` begins with the first entry.
    :param who: one principal, as the column shows it: `key:ID`, operator, service, a user's name, gate.
    :param as_json: one JSON line per entry.
    """
    from upcycle.api.audit.v1.service_pb2 import ListEntriesRequest

    begin = None if since == "all" else timestamp(datetime.now(UTC) - timedelta(seconds=seconds(since)))
    request = ListEntriesRequest(since=begin, who=who, limit=_PAGE)
    async with Platform() as platform:
        of_each = await asyncio.gather(*(_all(stub, request) for stub in platform.audit.values()))
    found = [
        (PEERS[peer], entry) for peer, listed in zip(platform.audit, of_each, strict=True) for entry in listed
    ]
    found.sort(key=lambda one: one[1].at.ToNanoseconds())
    if as_json:
        for service, entry in found:
            print_json("audit", {"service": service, **fields_of(entry)})
        return Exit.OK
    print_table(("at", "who", "call", "object", "digest", "outcome"), (_row(entry) for _, entry in found))
    return Exit.OK


async def _all(stub: "AuditServiceAsyncStub", request: "ListEntriesRequest") -> list["AuditEntry"]:
    """Page by page."""
    asked = type(request)()
    asked.CopyFrom(request)
    found: list[AuditEntry] = []
    while True:
        page = await stub.ListEntries(asked, timeout=_TIMEOUT_S)
        found += page.entries
        if not page.next:
            return found
        asked.after = page.next


def _row(entry: "AuditEntry") -> tuple[str, ...]:
    at = f"{entry.at.ToDatetime():%Y-%m-%d %H:%M:%S}"
    return (at, entry.who, entry.rpc, entry.object, entry.digest[:_DIGEST_CHARS], entry.outcome)
