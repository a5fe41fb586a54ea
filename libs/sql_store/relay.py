"""Publishes what the outbox holds, in order within each stream, until the bus confirms; then marks it.

A row is marked after its PubAck, so a crash between the two publishes it again under the same id; so does a
mark that was lost with the machine's power. Where many rows wait, the bus takes them as one batch, whole or
not at all; a batch that it refuses goes row by row. The full command queue of one model holds up neither the
other models' nor the facts. A decision that finds
another standing is answered like a repeat: its row is done with. What the bus refuses is set aside with its
reason, named by `ready`, and tried again every minute.
"""

import asyncio
import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

from google.protobuf import symbol_database
from google.protobuf.message import Message
from prometheus_client import Counter, Gauge
from sqlalchemy import Connection, and_, bindparam, delete, func, literal, or_, select, update

from event_bus.codec import Encoded
from event_bus.delivery import PubAck
from event_bus.errors import AlreadyDecided, BusError, QueueFull
from event_bus.publisher import Stored
from event_bus.topology import DECISIONS, EVENTS, TASKS
from event_bus.tracing import trace_of
from sql_store.database import Database
from sql_store.outbox import OUTBOX, topic
from sql_store.refused import TRY_AGAIN_S, Refused, read_refused, refused_ids, set_aside, take_back
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_BATCH: Final = 100
_TOGETHER_ROWS: Final = 16
"""From so many rows on, the server stores them as one: a batch costs it several files of its own."""
_TOGETHER_BYTES: Final = 1 << 20
_STREAMS: Final = (EVENTS, DECISIONS, TASKS)
_OTHERS_MARK_S: Final = 0.05
"""What another replica's relay gets to mark a batch that it published. The one that came second waits so
long, so the two do not meet at each batch."""
_PRUNE_EVERY_S: Final = 600.0
MAX_PRUNED: Final = 5_000
"""Rows that one transaction deletes: after an outage of hours all old rows at once take longer than a
statement may."""
_SQLITE_POLLS_RARELY: Final = 10
"""A SQLite file belongs to one process, whose own commits wake the relay: its polls are a precaution."""

RELAYED: Final = Counter("upcycle_outbox_relayed", "Rows published from the outbox.", ["stream"])
REFUSED: Final = Counter("upcycle_outbox_refused", "Times that the bus refused a row.", ["stream"])
WAITING: Final = Gauge("upcycle_outbox_waiting", "Rows read and not yet published.", ["stream"])


class Bus(Protocol):
    """What the relay needs of an EventBus."""

    async def publish_encoded(
        self, message: Encoded, stream: str, subject: str, *, event_id: str, again: bool = False
    ) -> PubAck: ...

    async def publish_together(self, stored: Sequence[Stored], stream: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One unpublished row."""

    id: int
    stream: str
    subject: str
    event_id: str
    schema: str
    payload: str
    trace: str
    again: bool

    def stored(self) -> Stored:
        """As the bus takes it. Raises KeyError for a schema that this program does not know."""
        message = Encoded(symbol_database.Default().GetSymbol(self.schema), self.payload.encode())
        return Stored(message, self.subject, self.event_id, json.loads(self.trace))


_COLUMNS: Final = tuple(OUTBOX.c[name] for name in Row.__slots__)
_UNPUBLISHED: Final = and_(OUTBOX.c.published_at.is_(None), OUTBOX.c.refusal.is_(None))
_ONE_ROW: Final = select(*_COLUMNS).where(OUTBOX.c.id == bindparam("row_id"))
_WAITING_ROWS: Final = (  # built once, as the others here: that costs several times what running them costs
    select(*_COLUMNS)
    .where(
        _UNPUBLISHED,
        OUTBOX.c.stream == bindparam("stream_"),
        OUTBOX.c.subject.not_in(bindparam("full", expanding=True)),
    )
    .order_by(OUTBOX.c.id)
    .limit(_BATCH)
)
_FIRST_HOLDING: Final = (
    select(func.min(OUTBOX.c.id))
    .where(_UNPUBLISHED, OUTBOX.c.schema.in_(bindparam("held_by", expanding=True)))
    .scalar_subquery()
)
_NOT_HELD_ROWS: Final = _WAITING_ROWS.where(or_(_FIRST_HOLDING.is_(None), OUTBOX.c.id < _FIRST_HOLDING))
_LEFT: Final = select(OUTBOX.c.id).where(
    OUTBOX.c.id.in_(bindparam("ids", expanding=True)), OUTBOX.c.published_at.is_(None)
)
_MARK: Final = (
    update(OUTBOX).where(OUTBOX.c.id.in_(bindparam("ids", expanding=True))).values(published_at=func.now())
)


class OutboxRelay:
    """A component: runs from `start` to `stop`; wakes at once when this process enqueued, else polls."""

    name = "outbox"

    def __init__(
        self,
        db: Database,
        bus: Bus,
        *,
        poll_s: float = 0.5,
        keep: timedelta = timedelta(days=1),
        try_refused_s: float = TRY_AGAIN_S,
        gather_s: float = 0.0,
        never_overtaken: Sequence[type[Message]] = (),
    ) -> None:
        """gather_s: how long after a wake-up other rows may join, where facts are many and in no hurry: rows
        are read and marked in a transaction each. never_overtaken: facts that no command and no decision
        which was stored later overtakes. Whatever a worker reports stands after them in the stream, and
        whatever is decided is copied behind them, so a reader that begins with them misses nothing."""
        self._db = db
        self._never_overtaken = tuple(fact.DESCRIPTOR.full_name for fact in never_overtaken)
        self._bus = bus
        self._poll_s = poll_s
        self._idle_s = poll_s * (_SQLITE_POLLS_RARELY if db.dialect == "sqlite" else 1)
        self._keep = keep
        self._try_refused_s = try_refused_s
        self._gather_s = gather_s
        self._refused = Refused()
        self._looking = asyncio.Lock()  # or an older look could replace what a newer one found
        self._wakeups = {stream: asyncio.Event() for stream in _STREAMS}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    async def start(self) -> None:
        """Begin to publish."""
        loop = asyncio.get_running_loop()
        for stream, wakeup in self._wakeups.items():
            self._db.listen(topic(stream), partial(_set_from_thread, loop, wakeup))
        self._tasks = [asyncio.create_task(self._run(stream), name=f"outbox/{stream}") for stream in _STREAMS]
        self._tasks.append(asyncio.create_task(self._prune(), name="outbox/prune"))
        self._tasks.append(asyncio.create_task(self._try_refused(), name="outbox/refused"))

    async def stop(self) -> None:
        """Publish what is already committed if the bus takes it now, then end. The rest stays for the
        next start.
        """
        self._stopping = True
        self._wake()
        publishing, prune = self._tasks[: len(_STREAMS)], self._tasks[len(_STREAMS) :]
        if publishing:
            await asyncio.wait(publishing, timeout=2.0)
        for task in (*publishing, *prune):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def ready(self) -> str | None:
        """Publishing; an alarm while the bus refuses rows."""
        is_running = bool(self._tasks) and all(not task.done() for task in self._tasks)
        return self._refused.alarm() if is_running else "not running"

    def _wake(self) -> None:
        for wakeup in self._wakeups.values():
            wakeup.set()

    async def _run(self, stream: str) -> None:
        while True:
            self._wakeups[stream].clear()
            is_last = self._stopping
            pause_s = await self._relay(stream)
            if is_last:
                return
            if pause_s > 0:
                try:
                    await asyncio.wait_for(self._wakeups[stream].wait(), pause_s)
                except TimeoutError:
                    continue
                if self._gather_s and not self._stopping:
                    await asyncio.sleep(self._gather_s)

    async def _relay(self, stream: str) -> float:
        """Publish one batch; returns how long to wait for the next."""
        full: set[str] = set()
        num_full = -1
        try:
            held = self._never_overtaken if stream != EVENTS else ()
            while len(full) > num_full:  # read past the rows of each queue that turned out to be full
                num_full = len(full)
                rows = await self._db.run(
                    lambda connection: _unpublished(connection, stream, tuple(full), held)
                )
                WAITING.labels(stream).set(len(rows))
                confirmed = await self._published(rows, full)
            if confirmed and stream == EVENTS and self._never_overtaken:
                self._wake()
        except Unavailable as error:
            _LOG.error("outbox_unreadable", extra={"stream": stream, "error": str(error)})
            return self._poll_s
        WAITING.labels(stream).set(len(rows) - confirmed)
        if confirmed == _BATCH:
            return 0.0
        return self._poll_s if full or len(rows) > confirmed else self._idle_s

    async def _published(self, rows: Sequence[Row], full: set[str]) -> int:
        """Publish rows in order up to the first that has to wait; mark those confirmed; returns how many.

        full: subjects whose queue takes no more, added to here; their rows wait, the others go on.
        """
        confirmed: list[int] = []
        try:
            for batch in _batches([row for row in rows if row.subject not in full]):
                left = await self._published_together(batch)
                confirmed += sorted({row.id for row in batch} - {row.id for row in left})
                if not await self._published_alone(left, full, confirmed):
                    break
        except Unavailable as error:
            _LOG.warning("outbox_waits", extra={"rows": len(rows) - len(confirmed), "error": str(error)})
        finally:
            if confirmed:
                await self._db.note(lambda connection: _mark_published(connection, confirmed))
        return len(confirmed)

    async def _published_together(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Returns those that are not known to be published: they are few, or the bus refuses one of them.
        Raises Unavailable."""
        if len(rows) < _TOGETHER_ROWS or rows[0].stream == DECISIONS:
            return rows
        try:
            await self._bus.publish_together([row.stored() for row in rows], rows[0].stream)
        except (BusError, KeyError) as error:
            _LOG.info("outbox_batch_refused", extra={"stream": rows[0].stream, "error": repr(error)})
            return await self._left_by_others(rows) if isinstance(error, AlreadyDecided) else rows
        RELAYED.labels(rows[0].stream).inc(len(rows))
        return []

    async def _left_by_others(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The bus knows an id of a batch: the relay of another replica published it, or a relay that did not
        live to mark it. Returns those that were not marked in the meantime. Raises Unavailable."""
        if self._db.dialect != "sqlite":
            await asyncio.sleep(_OTHERS_MARK_S)
        ids = [row.id for row in rows]
        left = await self._db.run(lambda connection: set(connection.execute(_LEFT, {"ids": ids}).scalars()))
        return [row for row in rows if row.id in left]

    async def _published_alone(self, rows: Sequence[Row], full: set[str], confirmed: list[int]) -> bool:
        """Publish row by row; False where one has to wait, and those behind it."""
        for row in rows:
            if row.subject in full:
                continue
            try:
                await self._publish(row)
            except QueueFull as error:
                full.add(row.subject)
                _LOG.warning("queue_is_full", extra={"subject": row.subject, "error": str(error)})
                continue
            except Unavailable as error:
                extra = {"stream": row.stream, "event_id": row.event_id, "error": str(error)}
                _LOG.warning("outbox_waits", extra=extra)
                return False
            except (BusError, KeyError) as error:
                await self._set_aside(row, error)
                continue
            confirmed.append(row.id)
        return True

    async def _publish(self, row: Row) -> None:
        stored = row.stored()
        with trace_of(stored.trace):
            await self._bus.publish_encoded(
                stored.message, row.stream, row.subject, event_id=row.event_id, again=row.again
            )
        RELAYED.labels(row.stream).inc()

    async def _set_aside(self, row: Row, error: Exception) -> None:
        REFUSED.labels(row.stream).inc()
        extra = {"event_id": row.event_id, "schema": row.schema, "error": repr(error)}
        _LOG.error("outbox_row_refused", extra=extra)

        def stored(connection: Connection) -> Refused:
            set_aside(connection, row.id, repr(error))
            return read_refused(connection)

        async with self._looking:
            self._refused = await self._db.run(stored)

    async def _try_refused(self) -> None:
        """At the start and every minute: publish what was refused, or name it."""
        while True:
            try:
                for row_id in await self._db.run(refused_ids):
                    await self._try_again(row_id)
                async with self._looking:
                    self._refused = await self._db.run(read_refused)
            except Unavailable as error:
                _LOG.warning("refused_rows_wait", extra={"error": str(error)})
            await asyncio.sleep(self._try_refused_s)

    async def _try_again(self, row_id: int) -> None:
        """Raises Unavailable."""
        found = await self._db.run(
            lambda connection: connection.execute(_ONE_ROW, {"row_id": row_id}).one_or_none()
        )
        if found is None:
            return
        row = Row(*found)
        try:
            await self._publish(row)
        except QueueFull as error:
            raise Unavailable(str(error)) from error
        except (BusError, KeyError) as error:  # it stays refused, unless it was announced again meanwhile
            _LOG.warning("refused_again", extra={"event_id": row.event_id, "error": repr(error)})
            return
        _LOG.warning("refused_row_published", extra={"event_id": row.event_id})

        def taken(connection: Connection) -> None:
            take_back(connection, row_id)
            _mark_published(connection, [row_id])

        await self._db.run(taken)

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_EVERY_S)
            try:
                while await self._db.run(lambda connection: prune(connection, self._keep)) == MAX_PRUNED:
                    await asyncio.sleep(0)  # others write in between
            except Unavailable as error:
                _LOG.warning("outbox_not_pruned", extra={"error": str(error)})


def _set_from_thread(loop: asyncio.AbstractEventLoop, wakeup: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(wakeup.set)


def _batches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """In order, cut where a batch would be large."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        if batch and size + len(row.payload) > _TOGETHER_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += len(row.payload)
    if batch:
        yield batch


def prune(connection: Connection, keep: timedelta, *, limit: int = MAX_PRUNED) -> int:
    """Delete up to `limit` rows that were published longer than `keep` ago; refused rows stay. Returns how
    many."""
    now: Any = connection.execute(select(func.now())).scalar_one()
    old = (OUTBOX.c.published_at < literal(now - keep), OUTBOX.c.refusal.is_(None))
    ids = select(OUTBOX.c.id).where(*old).order_by(OUTBOX.c.id).limit(limit)
    return connection.execute(delete(OUTBOX).where(OUTBOX.c.id.in_(ids))).rowcount


def _unpublished(
    connection: Connection, stream: str, full: Collection[str], held_by: Sequence[str]
) -> list[Row]:
    """The next rows of a stream, up to the first unpublished fact of a schema in `held_by`."""
    wanted, values = _WAITING_ROWS, {"stream_": stream, "full": list(full)}
    if held_by:
        wanted, values = _NOT_HELD_ROWS, {**values, "held_by": list(held_by)}
    return [Row(*columns) for columns in connection.execute(wanted, values)]


def _mark_published(connection: Connection, ids: Sequence[int]) -> None:
    connection.execute(_MARK, {"ids": list(ids)})
