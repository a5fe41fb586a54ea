"""The rows that calls of recorded sessions become in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, bindparam, insert, update

from identities import events
from identities.entities import recorded_episode_id
from identities.tenants import OWN_TENANT
from model_gateway.adapters import tables
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.sessions import CallKept, Session, SessionBounds, SessionState, StorableCall
from model_gateway.wire import sessions as wire
from sql_store import Fact, PreparedRows, enqueue_facts, owned

_SESSION: Final = tables.recorded_session
_CALL: Final = tables.recorded_call
SESSION_FIELDS: Final = (
    *("session_id", "key_id", "model", "task_digest", "opened_at", "last_call_at"),
    *("num_calls", "num_bytes", "unrecorded_calls"),
)
_COUNTS: Final = ("num_calls", "num_bytes", "unrecorded_calls")
_COUNTED: Final = ("last_call_at", *_COUNTS)
_INSERT_SESSIONS: Final = PreparedRows(insert(_SESSION), [column.name for column in _SESSION.columns])
_INSERT_CALLS: Final = PreparedRows(
    insert(_CALL), [column.name for column in _CALL.columns if column.name != "id"]
)
_COUNT: Final = PreparedRows(
    update(_SESSION)
    .where(
        owned(_SESSION, session_id=bindparam("of_session"), state=SessionState.OPEN.value),
        *(_SESSION.c[name] == bindparam(f"{name}_before") for name in _COUNTS),
    )
    .values({name: bindparam(name) for name in _COUNTED}),
    ("of_session", *(f"{name}_before" for name in _COUNTS), *_COUNTED),
)


class RowsChanged(Exception):
    """Rows of sessions are not what the transaction was made for."""


@dataclass(slots=True)
class _Tally:
    """A session in one transaction: as it was, and what the calls add to it."""

    before: Session
    is_new: bool
    captured: bool
    last_call_at: datetime
    num_calls: int
    num_bytes: int
    unrecorded_calls: int

    def after(self) -> Session:
        return replace(self.before, **{name: getattr(self, name) for name in _COUNTED})

    def counts(self) -> dict[str, Any]:
        values = {f"{name}_before": getattr(self.before, name) for name in _COUNTS}
        values |= {name: getattr(self, name) for name in _COUNTED}
        return {"of_session": self.before.session_id, **values}


class SessionBatch:
    """Calls of one transaction, and the sessions that they change, which are written together: a statement
    costs more than its rows."""

    def __init__(self, sessions: Mapping[str, Session], bounds: SessionBounds) -> None:
        self._known = sessions
        self._bounds = bounds
        self._tallies: dict[str, _Tally] = {}
        self._calls: list[dict[str, Any]] = []

    @property
    def sessions(self) -> Sequence[Session]:
        """As they are once this is written; captured ones, which get one call, are of no interest."""
        return [one.after() for one in self._tallies.values() if not one.captured]

    def take(self, call: StorableCall) -> GatewayError | CallKept:
        """What becomes of the call, which may be the first of its session."""
        tally = self._tallies.get(call.key.session_id) or self._tally(call)
        try:
            tally.before.check(call.key, call.model)
        except GatewayError as error:
            return error
        size = call.size_bytes
        fits = self._bounds.have_room(tally.num_calls, tally.num_bytes, tally.unrecorded_calls, size)
        if fits or (tally.is_new and call.key.session_id not in self._tallies):
            self._calls += _rows(call if fits else call.without_content())
        tally.last_call_at = call.ended_at
        tally.num_calls += fits
        tally.num_bytes += size * fits
        tally.unrecorded_calls += not fits
        self._tallies[call.key.session_id] = tally
        return CallKept.RECORDED if fits else CallKept.BEYOND_BOUNDS

    def _tally(self, call: StorableCall) -> _Tally:
        known = self._known.get(call.key.session_id)
        before = known or _opened(call)
        counts = {name: getattr(before, name) for name in _COUNTED}
        return _Tally(before, is_new=known is None, captured=call.key.captured, **counts)

    def write(self, connection: Connection) -> None:
        """All of it, sessions in the order of their ids: two transactions then never wait for each other.
        Raises RowsChanged."""
        tallies = [self._tallies[session_id] for session_id in sorted(self._tallies)]
        opened = [one for one in tallies if one.is_new]
        _INSERT_SESSIONS.run(connection, [_row(one.after(), captured=one.captured) for one in opened])
        enqueue_facts(connection, [_opened_fact(one.after()) for one in opened])
        counted = [one.counts() for one in tallies if not one.is_new]
        if _COUNT.run(connection, counted) != len(counted):
            raise RowsChanged
        _INSERT_CALLS.run(connection, self._calls)


def _opened_fact(session: Session) -> Fact:
    event_id = events.session_opened(recorded_episode_id(session.session_id))
    return Fact(wire.opened_to_wire(session), session.model, event_id)


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
        labels=call.key.labels,
    )


def _row(session: Session, *, captured: bool) -> dict[str, Any]:
    values = {name: getattr(session, name) for name in SESSION_FIELDS}
    values |= {"tenant": OWN_TENANT, "state": session.state.value, "captured": captured}
    return {**values, "labels": ",".join(session.labels)}


def _rows(call: StorableCall) -> list[dict[str, Any]]:
    row = {
        "tenant": OWN_TENANT,
        "session_id": call.key.session_id,
        "messages": call.messages,
        "tools": call.tools,
        "temperature": call.temperature,
        "started_at": call.started_at,
        "ended_at": call.ended_at,
    }
    return [{**row, "turn": turn} for turn in call.turns]
