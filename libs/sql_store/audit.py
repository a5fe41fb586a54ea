"""Who changed what: one row for each change, written in the transaction that makes it.

Rows are only added. The database itself refuses to change or delete one (triggers), also for this service.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from alembic import op
from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table, Text, insert, select

from sql_store.columns import UtcDateTime
from sql_store.database import Database
from sql_store.tenants import current_tenant, owned

TABLE_NAME: Final = "audit_entry"
MAX_TEXT: Final = 500
"""Characters of an outcome, and of an object, that are kept."""
_MAX_NAME: Final = 128
"""Of all others."""


def audit_table(metadata: MetaData) -> Table:
    """The log as a table of `metadata`; a migration of the service creates it (`create_audit_table`)."""
    return Table(
        TABLE_NAME,
        metadata,
        Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("tenant", String(64), nullable=False, server_default="default", default=current_tenant),
        Column("at", UtcDateTime(), nullable=False, index=True),
        Column("who", String(_MAX_NAME), nullable=False),
        Column("name", String(_MAX_NAME), nullable=False),
        Column("rpc", String(_MAX_NAME), nullable=False),
        Column("object", Text, nullable=False),
        Column("digest", String(_MAX_NAME), nullable=False),
        Column("outcome", Text, nullable=False),
    )


AUDIT: Final = audit_table(MetaData())


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change. who: a principal; name: of it, for people; rpc: empty where a loop decided. number: given
    by the database."""

    at: datetime
    who: str
    name: str
    rpc: str
    object: str
    digest: str
    outcome: str
    number: int = 0


def add_entry(connection: Connection, entry: AuditEntry) -> None:
    """With the running transaction: the change and its entry are there together, or neither."""
    values = {name: getattr(entry, name) for name in AuditEntry.__slots__ if name != "number"}
    for name in values.keys() - {"at"}:
        values[name] = values[name][: MAX_TEXT if name in ("object", "outcome") else _MAX_NAME]
    connection.execute(insert(AUDIT).values(**values))


async def entries(
    database: Database, *, since: datetime | None, who: str, after: int, limit: int
) -> Sequence[AuditEntry]:
    """Oldest first, with a number above `after`. who: empty for all."""
    query = select(AUDIT).where(owned(AUDIT), AUDIT.c.number > after).order_by(AUDIT.c.number).limit(limit)
    if since is not None:
        query = query.where(AUDIT.c.at >= since)
    if who:
        query = query.where(AUDIT.c.who == who)

    def work(connection: Connection) -> list[AuditEntry]:
        rows = connection.execute(query).mappings()
        return [AuditEntry(**{name: row[name] for name in AuditEntry.__slots__}) for row in rows]

    return await database.run(work)


def create_audit_table() -> None:
    """In a migration: the table, and triggers that refuse to change it."""
    audit_table(MetaData()).create(op.get_bind())
    if op.get_bind().dialect.name == "sqlite":
        for event in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_entry_refuses_{event.lower()} BEFORE {event} ON {TABLE_NAME} "
                "BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END"
            )
        op.execute(  # INSERT OR REPLACE removes a row without a DELETE
            "CREATE TRIGGER audit_entry_refuses_replace BEFORE INSERT ON audit_entry "
            "WHEN EXISTS (SELECT 1 FROM audit_entry WHERE number = NEW.number) "
            "BEGIN SELECT RAISE(ABORT, 'the audit log is only added to'); END"
        )
        return
    op.execute(
        "CREATE FUNCTION audit_entry_refuses() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit log is only added to'; END $$"
    )
    # By row, so that a restore may empty a table that is empty.
    op.execute(
        f"CREATE TRIGGER audit_entry_refuses_change BEFORE UPDATE OR DELETE ON {TABLE_NAME} "
        "FOR EACH ROW EXECUTE FUNCTION audit_entry_refuses()"
    )
    op.execute(
        f"CREATE TRIGGER audit_entry_refuses_truncate BEFORE TRUNCATE ON {TABLE_NAME} "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_entry_refuses()"
    )
