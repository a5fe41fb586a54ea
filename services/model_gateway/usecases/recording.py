"""Recording of sessions: a call is answered to its client once it is stored, and a session that ends becomes
a trajectory in the object store.

What of production traffic is captured, without a session being named, is recorded in the same way, but for
one thing: its client never waits for it, and losing some of it is no failure.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from model_gateway import telemetry
from model_gateway.adapters.directory import RegistryDirectory
from model_gateway.adapters.session_bodies import SessionBodies
from model_gateway.adapters.sql_sessions import SqlSessions
from model_gateway.domain.calls import CompletionCall
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.keys import ApiKey
from model_gateway.domain.routing import ServedWeights
from model_gateway.domain.sessions import (
    CallKept,
    RecordedCall,
    RecordingUnavailable,
    SampledChoice,
    Session,
    SessionKey,
    SessionNotFound,
    SessionState,
    StorableCall,
    UnrecordableCall,
)
from model_gateway.usecases.known_sessions import KnownSessions
from model_gateway.usecases.redacting import RedactCaptures
from model_gateway.wire import sessions as wire
from service_kit.errors import as_errors
from service_kit.loops import one_piece, pause
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1000
"""Captured calls that wait to be stored."""
MAX_WAITING_BYTES: Final = 64 << 20
"""Of the requests of all of them."""
_BATCH: Final = 64
_BATCH_BYTES: Final = 32 << 20
"""Of one transaction; a call beyond it has one of its own."""
_AT_ONCE_BYTES: Final = 64 << 10
"""So much is made into rows on the event loop, in about half a millisecond; more of it in a thread."""
_GATHER_S: Final = 0.004
"""After a transaction of several calls, until the next: a transaction costs more than its calls."""
_HASH_RANGE: Final = 1 << 32
_SWEEP_S: Final = 5.0
_LONGEST_WAIT_S: Final = 60.0
_STORE_S: Final = 30.0
"""Longest that a client waits for its call to be stored."""
_TOO_LONG: Final = f"the database did not store it within {_STORE_S:g} s"
UNGRADED: Final = "ungraded"


@dataclass(frozen=True, slots=True)
class RecordingPolicy:
    """capture_fraction: of the requests of keys that may be captured. Seconds: idle_s without a call closes a
    session; retention_s without a reward settles it as ungraded."""

    capture_fraction: float = 0.0
    idle_s: float = 3600.0
    retention_s: float = 7 * 86400.0


@dataclass(slots=True)
class _Waiting:
    call: RecordedCall
    stored: "asyncio.Future[None]"


@dataclass(frozen=True, slots=True)
class _Ready:
    waiting: _Waiting
    call: StorableCall


class RecordCalls:
    """Calls on their way to the database, in batches."""

    def __init__(
        self,
        sessions: SqlSessions,
        known: KnownSessions,
        directory: RegistryDirectory,
        policy: RecordingPolicy,
        *,
        now: Callable[[], datetime],
        redaction: RedactCaptures | None = None,
    ) -> None:
        self._sessions = sessions
        self._known = known
        self._redaction = redaction
        self._directory = directory
        self._threshold = int(policy.capture_fraction * _HASH_RANGE)
        self._now = now
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()

    def captures(self, key: ApiKey, request_id: str) -> SessionKey | None:
        """The session of a request that names none: one of its own if it is captured, else None. Replicas
        choose by the same hash."""
        if self._threshold == 0 or not key.may_capture:
            return None
        hashed = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:4], "big")
        return SessionKey(request_id, key.key_id, captured=True) if hashed < self._threshold else None

    async def check(self, key: SessionKey, model: str) -> None:
        """Before an engine is asked. Raises SessionNotFound, SessionClosed, OtherModel, OtherLabels,
        RecordingUnavailable."""
        if key.captured:
            return
        try:
            session = await self._known.find(key.session_id)
        except Unavailable as error:
            raise RecordingUnavailable(
                f"session {key.session_id!r} cannot be recorded now: {error}"
            ) from error
        if session is not None:
            session.check(key, model)

    async def add(self, call: RecordedCall) -> None:
        """Returns when the call is stored; at once for a captured one. Raises RecordingUnavailable,
        SessionNotFound, SessionClosed, OtherLabels."""
        if call.key.captured:
            self._capture(call)
            return
        stored = self._put(call).stored
        # Cheaper than asyncio.timeout. A client that leaves cancels `stored`; its call is stored all the same
        waits = asyncio.get_running_loop().call_later(_STORE_S, _settle, stored, TimeoutError(_TOO_LONG))
        try:
            await stored
        except (TimeoutError, Unavailable) as error:
            raise RecordingUnavailable(
                f"the answer could not be recorded in session {call.key.session_id!r}, so it is withheld: "
                f"{error}; ask again"
            ) from error
        finally:
            waits.cancel()

    def _capture(self, call: RecordedCall) -> None:
        waiting = [one.call for one in self._waiting if one.call.key.captured]
        waiting += self._redaction.waiting if self._redaction is not None else ()
        size = call.request_bytes + sum(one.request_bytes for one in waiting)
        if len(waiting) >= MAX_WAITING or size > MAX_WAITING_BYTES:
            telemetry.CAPTURE_DROPPED.labels("buffer_full").inc()
        elif self._redaction is not None:
            self._redaction.offer(call, self._put)
        else:
            self._put(call)

    def _put(self, call: RecordedCall) -> _Waiting:
        waiting = _Waiting(call, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        return waiting

    async def call_of(
        self,
        key: SessionKey,
        call: CompletionCall,
        choices: Sequence[SampledChoice],
        weights: ServedWeights | None,
        started_at: datetime,
    ) -> RecordedCall:
        """What is stored of an answer. weights: None of an upstream model, whose tokens are no policy's."""
        model, digests = call.target.model, dict[int, str]()
        if weights is None:
            for one in choices:
                one.forget_tokens()
        else:
            spans = {span.version for one in choices for span in one.spans}
            model, versions = weights.model, {weights.oldest, weights.newest} | spans
            digests = {version: await self._directory.digest(model, version) for version in versions}
        return RecordedCall(
            key=key,
            model=model,
            body=call.body,
            temperature=call.temperature,
            choices=choices,
            digests=digests,
            started_at=started_at,
            ended_at=self._now(),
            request_bytes=len(call.raw),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Stores what waits, batch by batch, until stopped; then what still waits."""
        while await pause(stop, _LONGEST_WAIT_S, self._arrived):
            await self._store_all()
        await self._store_all()

    async def _store_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            rows = await _rows_of(batch)
            ready = []
            for one, row in zip(batch, rows, strict=True):
                if isinstance(row, UnrecordableCall):
                    self._lost(one, row)
                else:
                    ready.append(_Ready(one, row))
            for part in _transactions(ready):
                await self._store(part)
            if 1 < len(batch) < _BATCH:
                await asyncio.sleep(_GATHER_S)

    async def _store(self, batch: Sequence[_Ready]) -> None:
        """In one transaction. What the database takes from none of them fails alone."""
        try:
            with as_errors():
                calls = [one.call for one in batch]
                added = await self._sessions.add(calls, self._known.last(one.key.session_id for one in calls))
        except Unavailable as error:
            log.warning("calls_not_recorded", extra={"calls": len(batch), "why": str(error)})
            for one in batch:
                self._lost(one.waiting, error)
        except Exception as error:
            if len(batch) == 1:
                self._lost(batch[0].waiting, UnrecordableCall(batch[0].call.key.session_id, repr(error)))
                return
            for one in batch:
                await self._store([one])
        else:
            self._known.put(added.sessions)
            for one, outcome in zip(batch, added.outcomes, strict=True):
                self._settle(one, outcome)

    def _settle(self, one: _Ready, outcome: GatewayError | CallKept) -> None:
        if isinstance(outcome, GatewayError):
            self._lost(one.waiting, outcome)
            return
        if outcome is CallKept.BEYOND_BOUNDS:
            telemetry.BEYOND_BOUNDS.labels(one.call.model).inc()
        _settle(one.waiting.stored, None)

    def _lost(self, one: _Waiting, why: GatewayError | Unavailable) -> None:
        if isinstance(why, UnrecordableCall):
            log.warning("call_not_recordable", extra={"session_id": one.call.key.session_id})
        if one.call.key.captured:
            telemetry.CAPTURE_DROPPED.labels(type(why).__name__).inc()
            one.stored.cancel()
        else:
            _settle(one.stored, why)


async def _rows_of(batch: Sequence[_Waiting]) -> list[StorableCall | UnrecordableCall]:
    """In a thread where it takes long: handing over a small batch costs more than the batch."""
    if sum(one.call.about_bytes for one in batch) <= _AT_ONCE_BYTES:
        return _rows(batch)
    return await asyncio.to_thread(_rows, batch)


def _rows(batch: Sequence[_Waiting]) -> list[StorableCall | UnrecordableCall]:
    return [wire.storable(one.call) for one in batch]


def _transactions(batch: Sequence[_Ready]) -> Iterator[Sequence[_Ready]]:
    """In parts of at most _BATCH_BYTES, or of one call."""
    part: list[_Ready] = []
    size = 0
    for one in batch:
        if part and size + one.call.size_bytes > _BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += one.call.size_bytes
    if part:
        yield part


def _settle(stored: "asyncio.Future[None]", why: Exception | None) -> None:
    if stored.done():
        return
    if why is None:
        stored.set_result(None)
    else:
        stored.set_exception(why)
        stored.exception()  # its client may be gone


class CloseSessions:
    """Ends sessions: their calls become a trajectory, and those without a reward are settled."""

    def __init__(
        self,
        sessions: SqlSessions,
        known: KnownSessions,
        bodies: SessionBodies,
        policy: RecordingPolicy,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._sessions = sessions
        self._known = known
        self._bodies = bodies
        self._policy = policy
        self._now = now

    async def owned(self, session_id: str, key_id: str) -> Session:
        """The key's session. Raises SessionNotFound, Unavailable."""
        found = await self._sessions.find(session_id)
        if found is None or found.key_id != key_id:
            raise SessionNotFound(session_id)
        return found

    async def close(self, session_id: str) -> Session:
        """Write its trajectory, unless that was done. The session, which takes no more calls. Raises
        SessionNotFound, Unavailable."""
        session = await self._sessions.begin_closing(session_id)
        self._known.put([session])
        if session.state is not SessionState.CLOSING:
            return session
        calls = await self._sessions.calls(session_id)
        if not calls:  # another replica has closed it meanwhile
            return session
        body = await asyncio.to_thread(wire.body_to_wire, session, calls)
        ref = await self._bodies.keep(body)
        await self._sessions.closed(session, wire.recorded_to_wire(body, ref))
        return session

    async def graded(self, session: Session) -> None:
        """Note that its reward stands; where that fails, the decision stands all the same."""
        try:
            await self._sessions.graded(session)
        except Unavailable as error:
            log.warning("grade_not_noted", extra={"session_id": session.session_id, "why": str(error)})

    async def run(self, stop: asyncio.Event) -> None:
        """Looks for sessions to end, at intervals, until stopped."""
        while await pause(stop, min(_SWEEP_S, self._policy.idle_s)):
            await self.sweep()

    async def sweep(self) -> None:
        """One look. What cannot be done now waits for the next one, and holds up nothing else."""
        now = self._now()
        idle = now - timedelta(seconds=self._policy.idle_s)
        old = now - timedelta(seconds=self._policy.retention_s)
        for session in await self._found(self._sessions.to_close(idle)):
            with _waits("recorded session to be closed", session):
                await self.close(session.session_id)
        for session in await self._found(self._sessions.ungraded(old)):
            with _waits("recorded session to be settled", session):
                await self._sessions.expire(session, wire.expired_to_wire(session, UNGRADED, now))

    async def _found(self, looking: Awaitable[list[Session]]) -> list[Session]:
        try:
            return await looking
        except Unavailable as error:
            log.warning("sessions_wait", extra={"why": str(error)})
            return []


@contextmanager
def _waits(what: str, session: Session) -> Iterator[None]:
    try:
        with one_piece(what):
            yield
    except Unavailable as error:
        log.warning("session_waits", extra={"session_id": session.session_id, "why": str(error)})
