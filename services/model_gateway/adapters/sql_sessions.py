"""Recorded sessions in SQL: who owns an id, what its state is, and its calls until they are a trajectory.

Every change of state stores the fact about it in the same transaction.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import orjson
from google.protobuf.message import Message
from sqlalchemy import Connection, RowMapping, and_, delete, insert, or_, select, update

from identities import events
from identities.entities import recorded_episode_id, trajectory_id
from identities.tenants import DEFAULT_TENANT
from model_gateway.adapters import tables
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.sessions import (
    CallKept,
    Session,
    SessionBounds,
    SessionNotFound,
    SessionState,
    StorableCall,
    StoredCall,
)
from model_gateway.wire import sessions as wire
from sql_store import Database, enqueue, owned, take_turn

_SESSION: Final = tables.recorded_session
_CALL: Final = tables.recorded_call
_FIELDS: Final = (
    *("session_id", "key_id", "model", "task_digest", "opened_at", "last_call_at"),
    *("num_calls", "num_bytes", "unrecorded_calls"),
)
_COUNTED: Final = ("last_call_at", "num_calls", "num_bytes", "unrecorded_calls")
MAX_AT_ONCE: Final = 100
"""Sessions that one look of the sweeper finds."""


class SqlSessions:
    """Sessions of this tenant. Every method raises Unavailable while the database is."""

    def __init__(self, database: Database, bounds: SessionBounds) -> None:
        self._db = database
        self._bounds = bounds

    async def find(self, session_id: str) -> Session | None:
        """The session of this id, whichever key it belongs to."""
        return await self._db.read(lambda connection: _find(connection, session_id))

    async def add(self, calls: Sequence[StorableCall]) -> list[GatewayError | CallKept]:
        """Stores these calls in one transaction; the first of a session opens it. For each: what became of
        it, or why it is refused."""

        def work(connection: Connection) -> list[GatewayError | CallKept]:
            for session_id in sorted({call.key.session_id for call in calls}):
                take_turn(connection, _turn(session_id))
            return [_add(connection, call, self._bounds) for call in calls]

        return await self._db.run(work)

    async def begin_closing(self, session_id: str) -> Session:
        """The session, which takes no more calls from here on. Raises SessionNotFound."""

        def work(connection: Connection) -> Session:
            take_turn(connection, _turn(session_id))
            change = update(_SESSION).where(
                owned(_SESSION, session_id=session_id, state=SessionState.OPEN.value)
            )
            connection.execute(change.values(state=SessionState.CLOSING.value))
            found = _find(connection, session_id)
            if found is None:
                raise SessionNotFound(session_id)
            return found

        return await self._db.run(work)

    async def calls(self, session_id: str) -> list[StoredCall]:
        """In the order in which they were answered."""
        query = select(_CALL).where(owned(_CALL, session_id=session_id)).order_by(_CALL.c.id)
        return await self._db.read(
            lambda connection: [_call(row) for row in connection.execute(query).mappings()]
        )

    async def closed(self, session: Session, recorded: Message) -> None:
        """Its trajectory is stored: the calls go, and the fact is published. Harmless when repeated."""
        session_id = session.session_id

        def work(connection: Connection) -> None:
            now = owned(_SESSION, session_id=session_id, state=SessionState.CLOSING.value)
            changed = connection.execute(
                update(_SESSION).where(now).values(state=SessionState.RECORDED.value)
            )
            if changed.rowcount:
                connection.execute(delete(_CALL).where(owned(_CALL, session_id=session_id)))
                trajectory = trajectory_id(recorded_episode_id(session_id))
                event_id = events.trajectory_recorded(trajectory)
                enqueue(connection, recorded, model=session.model, event_id=event_id)

        await self._db.run(work)

    async def to_close(self, idle_since: datetime) -> list[Session]:
        """Sessions to write to the object store: idle ones, captured ones, those whose writing was cut
        off."""
        open_ones = and_(
            owned(_SESSION, state=SessionState.OPEN.value),
            or_(_SESSION.c.last_call_at < idle_since, _SESSION.c.captured),
        )
        wanted = or_(open_ones, owned(_SESSION, state=SessionState.CLOSING.value))
        return await self._oldest(wanted)

    async def ungraded(self, last_call_before: datetime) -> list[Session]:
        """Recorded sessions whose last call is older."""
        recorded = owned(_SESSION, state=SessionState.RECORDED.value)
        return await self._oldest(and_(recorded, _SESSION.c.last_call_at < last_call_before))

    async def expire(self, session: Session, expired: Message) -> None:
        """No reward came in time, as far as the gateway knows: one that was decided before stands."""

        def work(connection: Connection) -> None:
            now = owned(_SESSION, session_id=session.session_id, state=SessionState.RECORDED.value)
            changed = connection.execute(update(_SESSION).where(now).values(state=SessionState.EXPIRED.value))
            if changed.rowcount:
                event_id = events.episode_outcome(recorded_episode_id(session.session_id))
                enqueue(connection, expired, model=session.model, event_id=event_id)

        await self._db.run(work)

    async def graded(self, session: Session) -> None:
        """Its reward stands, so that its retention does not matter any more."""
        now = owned(_SESSION, session_id=session.session_id, state=SessionState.RECORDED.value)
        change = update(_SESSION).where(now).values(state=SessionState.GRADED.value)
        await self._db.run(lambda connection: connection.execute(change))

    async def _oldest(self, wanted: Any) -> list[Session]:
        query = select(_SESSION).where(wanted).order_by(_SESSION.c.last_call_at).limit(MAX_AT_ONCE)
        return await self._db.read(
            lambda connection: [_session(row) for row in connection.execute(query).mappings()]
        )


def _turn(session_id: str) -> str:
    """So that a session takes no call while it is being closed."""
    return f"recorded_session {session_id}"


def _find(connection: Connection, session_id: str) -> Session | None:
    query = select(_SESSION).where(owned(_SESSION, session_id=session_id))
    row = connection.execute(query).mappings().first()
    return None if row is None else _session(row)


def _add(connection: Connection, call: StorableCall, bounds: SessionBounds) -> GatewayError | CallKept:
    known = _find(connection, call.key.session_id)
    session = known or _opened(call)
    try:
        session.check(call.key, call.model)
    except GatewayError as error:
        return error
    fits = bounds.take(session, call)
    if fits:
        session = replace(
            session, num_calls=session.num_calls + 1, num_bytes=session.num_bytes + call.size_bytes
        )
    else:
        session = replace(session, unrecorded_calls=session.unrecorded_calls + 1)
    session = replace(session, last_call_at=call.ended_at)
    if known is None:
        _open(connection, session, captured=call.key.captured)
    else:
        _count(connection, session)
    if fits or known is None:
        _store(connection, call if fits else call.without_content())
    return CallKept.RECORDED if fits else CallKept.BEYOND_BOUNDS


def _opened(call: StorableCall) -> Session:
    """The session of which this is the first call, without it."""
    return Session(
        session_id=call.key.session_id,
        key_id=call.key.key_id,
        model=call.model,
        state=SessionState.OPEN,
        task_digest=call.task_digest,
        opened_at=call.started_at,
        last_call_at=call.ended_at,
    )


def _open(connection: Connection, session: Session, *, captured: bool) -> None:
    values = {name: getattr(session, name) for name in _FIELDS}
    values |= {"tenant": DEFAULT_TENANT, "state": session.state.value, "captured": captured}
    connection.execute(insert(_SESSION).values(**values))
    event_id = events.session_opened(recorded_episode_id(session.session_id))
    enqueue(connection, wire.opened_to_wire(session), model=session.model, event_id=event_id)


def _count(connection: Connection, session: Session) -> None:
    counted = {name: getattr(session, name) for name in _COUNTED}
    connection.execute(
        update(_SESSION).where(owned(_SESSION, session_id=session.session_id)).values(**counted)
    )


def _store(connection: Connection, call: StorableCall) -> None:
    row = {
        "tenant": DEFAULT_TENANT,
        "session_id": call.key.session_id,
        "messages": call.messages,
        "tools": call.tools,
        "temperature": call.temperature,
        "started_at": call.started_at,
        "ended_at": call.ended_at,
    }
    connection.execute(insert(_CALL), [{**row, "turn": turn} for turn in call.turns])


def _session(row: RowMapping) -> Session:
    return Session(state=SessionState(row["state"]), **{name: row[name] for name in _FIELDS})


def _call(row: RowMapping) -> StoredCall:
    return StoredCall(
        messages=orjson.loads(row["messages"]),
        tools_json=row["tools"] if row["tools"] != "[]" else "",
        turn=row["turn"],
        temperature=row["temperature"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )
