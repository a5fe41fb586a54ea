"""Recorded sessions in SQL: who owns an id, what its state is, and its calls until they are a trajectory.

Every change of state stores the fact about it in the same transaction.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import orjson
from google.protobuf.message import Message
from sqlalchemy import Connection, RowMapping, and_, bindparam, delete, or_, select, update
from sqlalchemy.exc import IntegrityError

from identities import events
from identities.entities import recorded_episode_id, trajectory_id
from model_gateway.adapters import tables
from model_gateway.adapters.session_batches import SESSION_FIELDS, RowsChanged, SessionBatch
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.sessions import (
    Session,
    SessionBounds,
    SessionNotFound,
    SessionState,
    StorableCall,
    StoredBatch,
    StoredCall,
)
from sql_store import Database, enqueue, owned, take_turn

_SESSION: Final = tables.recorded_session
_CALL: Final = tables.recorded_call
# Built once: building one costs as much as running it.
_BY_IDS: Final = select(_SESSION).where(
    owned(_SESSION), _SESSION.c.session_id.in_(bindparam("session_ids", expanding=True))
)
MAX_AT_ONCE: Final = 100
"""Sessions that one look of the sweeper finds."""


_Asked = dict[str, "asyncio.Future[Session | None]"]
"""Ids that sessions are looked for by."""


class SqlSessions:
    """Sessions of this tenant. Every method raises Unavailable while the database is."""

    def __init__(self, database: Database, bounds: SessionBounds) -> None:
        self._db = database
        self._bounds = bounds
        self._asked: _Asked = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._finding: asyncio.Task[None] | None = None
        self._num_adding = 0

    async def find(self, session_id: str) -> Session | None:
        """The session of this id, whichever key it belongs to. What is asked for while the database answers
        is asked for together; on SQLite, which does one thing at a time, with the next calls to be stored."""
        asked = self._asked.get(session_id)
        if asked is None:
            asked = self._asked[session_id] = asyncio.get_running_loop().create_future()
        self._find_soon()
        return await asyncio.shield(asked)

    def _find_soon(self) -> None:
        is_busy = self._num_adding > 0 and self._db.dialect == "sqlite"
        if self._asked and not is_busy and (self._finding is None or self._finding.done()):
            self._finding = asyncio.create_task(self._find_asked())

    async def _find_asked(self, asked: _Asked | None = None) -> None:
        """asked: taken out of what is asked for before; each question has one who answers it."""
        while asked or self._asked:
            if not asked:
                asked, self._asked = self._asked, {}
            try:
                found = await self._db.read(partial(_found, session_ids=sorted(asked)))
            except Exception as error:
                for one in asked.values():
                    one.set_exception(error)
                    one.exception()  # who asked may have left
            else:
                _answer(asked, found)
            asked = None

    async def add(
        self, calls: Sequence[StorableCall], known: Mapping[str, Session | None] | None = None
    ) -> StoredBatch:
        """Stores these calls in one transaction; the first of a session opens it. known: sessions as this
        process saw them last, None where there was none: while their rows are still so, nothing is read."""
        asked: _Asked = {}
        if self._db.dialect == "sqlite":
            asked, self._asked = self._asked, {}
        self._num_adding += 1
        try:
            stored, found = await self._added(calls, known or {}, sorted(asked))
        except BaseException:
            again = asyncio.create_task(self._find_asked(asked))
            self._answering.add(again)
            again.add_done_callback(self._answering.discard)
            raise
        finally:
            self._num_adding -= 1
            # Once the caller had its turn: it may add the next calls at once, which take along what is asked.
            asyncio.get_running_loop().call_soon(self._find_soon)
        _answer(asked, found)
        return stored

    async def _added(
        self, calls: Sequence[StorableCall], known: Mapping[str, Session | None], asked: Sequence[str]
    ) -> "_Added":
        if all(call.key.captured or call.key.session_id in known for call in calls):
            try:
                return await self._db.run(partial(self._add_to_known, calls, known, asked))
            except (RowsChanged, IntegrityError):  # by another replica, or what is known was forgotten here
                pass
        return await self._db.run(partial(self._add_to_read, calls, asked))

    def _add_to_known(
        self,
        calls: Sequence[StorableCall],
        known: Mapping[str, Session | None],
        asked: Sequence[str],
        connection: Connection,
    ) -> "_Added":
        """Raises RowsChanged, also where a call would be refused: that is for the rows to say."""
        found = {session.session_id: session for session in known.values() if session is not None}
        batch = SessionBatch(found, self._bounds)
        outcomes = [batch.take(call) for call in calls]
        if any(isinstance(outcome, GatewayError) for outcome in outcomes):
            raise RowsChanged
        batch.write(connection)
        return StoredBatch(outcomes, batch.sessions), _found(connection, asked)

    def _add_to_read(
        self, calls: Sequence[StorableCall], asked: Sequence[str], connection: Connection
    ) -> "_Added":
        session_ids = sorted({call.key.session_id for call in calls})
        for session_id in session_ids:
            take_turn(connection, _turn(session_id))
        batch = SessionBatch(_found(connection, session_ids), self._bounds)
        outcomes = [batch.take(call) for call in calls]
        batch.write(connection)
        return StoredBatch(outcomes, batch.sessions), _found(connection, asked)

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


_Added = tuple[StoredBatch, Mapping[str, Session]]
"""What was stored, and the sessions that were asked for meanwhile, as the same transaction leaves them."""


def _answer(asked: _Asked, found: Mapping[str, Session]) -> None:
    for session_id, one in asked.items():
        one.set_result(found.get(session_id))


def _turn(session_id: str) -> str:
    """So that a session takes no call while it is being closed."""
    return f"recorded_session {session_id}"


def _find(connection: Connection, session_id: str) -> Session | None:
    return _found(connection, [session_id]).get(session_id)


def _found(connection: Connection, session_ids: Sequence[str]) -> dict[str, Session]:
    found: dict[str, Session] = {}
    for start in range(0, len(session_ids), MAX_AT_ONCE):
        wanted = {"session_ids": session_ids[start : start + MAX_AT_ONCE]}
        found |= {row["session_id"]: _session(row) for row in connection.execute(_BY_IDS, wanted).mappings()}
    return found


def _session(row: RowMapping) -> Session:
    fields = {name: row[name] for name in SESSION_FIELDS}
    labels = tuple(row["labels"].split(",")) if row["labels"] else ()
    return Session(state=SessionState(row["state"]), labels=labels, **fields)


def _call(row: RowMapping) -> StoredCall:
    return StoredCall(
        messages=orjson.loads(row["messages"]),
        tools_json=row["tools"] if row["tools"] != "[]" else "",
        turn=row["turn"],
        temperature=row["temperature"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
    )
