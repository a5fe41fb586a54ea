"""The outbox: an event is stored in the transaction that makes it true, and published after it, at least
once.

A row keeps what the publisher needs: schema, canonical JSON, the deterministic id, and the trace that it
belongs to.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message
from opentelemetry import propagate
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    false,
    func,
    or_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from event_bus import codec
from event_bus.topology import DECISIONS, EVENTS, TASKS, UPCYCLE, Topology
from identities.tenants import OWN_TENANT
from sql_store.columns import UtcDateTime
from sql_store.database import give_notice
from sql_store.prepared import PreparedRows

TABLE_NAME: Final = "outbox"


def topic(stream: str) -> str:
    """What a transaction gives notice of that stored a row for a stream."""
    return f"{TABLE_NAME}/{stream}"


def outbox_table(metadata: MetaData) -> Table:
    """The outbox as a table of `metadata`; a service's first migration creates it."""
    return Table(
        TABLE_NAME,
        metadata,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("stream", Text, nullable=False, comment="order holds within one"),
        Column("subject", Text, nullable=False, comment="where the bus takes it"),
        Column("event_id", Text, nullable=False, unique=True),
        Column("schema", Text, nullable=False),
        Column("payload", Text, nullable=False),
        Column("trace", Text, nullable=False, server_default="{}"),
        Column("enqueued_at", UtcDateTime(), nullable=False, server_default=func.now()),
        Column("published_at", UtcDateTime(), index=True),
        Column(
            "again", Boolean, nullable=False, server_default=false(), comment="the stream may have lost it"
        ),
        Column("refusal", Text, comment="why the bus refused it last"),
    )


OUTBOX: Final = outbox_table(MetaData())
_DONE_WITH: Final = or_(OUTBOX.c.published_at.is_not(None), OUTBOX.c.refusal.is_not(None))
_OF_A_ROW: Final = ("stream", "subject", "event_id", "schema", "payload", "trace")
_INSERTS: Final = {
    "postgresql": PreparedRows(postgresql.insert(OUTBOX).on_conflict_do_nothing(), _OF_A_ROW),
    "sqlite": PreparedRows(sqlite.insert(OUTBOX).on_conflict_do_nothing(), _OF_A_ROW),
}


def enqueue(
    connection: Connection,
    event: Message,
    *,
    model: str,
    event_id: str,
    tenant: str = OWN_TENANT,
    author: str = "",
    topology: Topology = UPCYCLE,
) -> None:
    """Store a fact with the running transaction of `Database.run`. A known `event_id` adds nothing. If
    the fact is a decision, and another author decided first, the row counts as published, and the decision
    that won arrives as a fact.

    author: of a decision whose type has several. Raises UnknownEvent and EventTooLarge here, where the
    transaction can still be refused.
    """
    stream, subject = topology.address(type(event), model, event_id, tenant=tenant, author=author)
    _store(connection, [_row(event, codec.encode(event), stream, subject, event_id)])


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about a model, under its id."""

    message: Message
    model: str
    event_id: str


def enqueue_facts(connection: Connection, facts: Sequence[Fact], *, tenant: str = OWN_TENANT) -> None:
    """Store many with one statement, as `enqueue` does with each."""
    rows = []
    for one in facts:
        stream, subject = UPCYCLE.address(type(one.message), one.model, one.event_id, tenant=tenant)
        rows.append(_row(one.message, codec.encode(one.message), stream, subject, one.event_id))
    _store(connection, rows)


def enqueue_again(connection: Connection, event: Message, *, event_id: str, **address: Any) -> None:
    """Like `enqueue`, of a fact that the stream may have lost: it is published also if it was before.

    While the stream remembers its id, that adds nothing there. Of a decision, the stored one is copied to the
    facts again, whichever author it has. One that the bus refused is tried again.
    """
    connection.execute(delete(OUTBOX).where(OUTBOX.c.event_id == event_id, _DONE_WITH))
    enqueue(connection, event, event_id=event_id, **address)
    connection.execute(update(OUTBOX).where(OUTBOX.c.event_id == event_id).values(again=True))


def publish_again(connection: Connection, event_ids: Collection[str]) -> None:
    """Publish these rows once more, unchanged. Ids that the outbox no longer has are ignored."""
    known = (OUTBOX.c.event_id.in_(sorted(event_ids)), _DONE_WITH)
    connection.execute(update(OUTBOX).where(*known).values(published_at=None, refusal=None, again=True))
    for stream in (EVENTS, DECISIONS, TASKS):
        give_notice(connection, topic(stream))


def enqueue_command(
    connection: Connection,
    command: Message,
    *,
    pool: str,
    model: str,
    event_id: str,
    tenant: str = OWN_TENANT,
) -> None:
    """Store a command for one worker of `pool`, like `enqueue`."""
    subject = UPCYCLE.command_subject(type(command), pool, model, tenant)
    _store(connection, [_row(command, codec.encode(command), TASKS, subject, event_id)])


@dataclass(frozen=True, slots=True)
class Requested:
    """A fact that is a command as well: one message under two ids. command_id: None where no worker gets it
    yet."""

    message: Message
    event_id: str
    command_id: str | None


def enqueue_requested(
    connection: Connection, requests: Sequence[Requested], *, pool: str, model: str, tenant: str = OWN_TENANT
) -> None:
    """Store many with one statement, each fact before its command, as `enqueue` and `enqueue_command` do."""
    rows = []
    for one in requests:
        payload, kind = codec.encode(one.message), type(one.message)
        stream, subject = UPCYCLE.address(kind, model, one.event_id, tenant=tenant)
        rows.append(_row(one.message, payload, stream, subject, one.event_id))
        if one.command_id is not None:
            subject = UPCYCLE.command_subject(kind, pool, model, tenant)
            rows.append(_row(one.message, payload, TASKS, subject, one.command_id))
    _store(connection, rows)


def _row(message: Message, payload: bytes, stream: str, subject: str, event_id: str) -> dict[str, Any]:
    trace: dict[str, str] = {}
    propagate.inject(trace)
    codec.check_size(subject, payload, {**codec.headers_for(type(message), event_id), **trace})
    return {
        "stream": stream,
        "subject": subject,
        "event_id": event_id,
        "schema": message.DESCRIPTOR.full_name,
        "payload": payload.decode(),
        "trace": json.dumps(trace),
    }


def _store(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        _INSERTS[connection.dialect.name].run(connection, rows)
    for stream in {row["stream"] for row in rows}:
        give_notice(connection, topic(stream))
