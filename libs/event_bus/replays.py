"""Reading facts from a cursor that the reader keeps: endless, in stream order, without gaps, no
acknowledgements.

Each reading is an unnamed consumer without acks that the server removes a minute after its reader stops. A
lost delivery shows as a jump in the consumer's own sequence, a lost connection as a new epoch; both mean:
read again from the cursor.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from event_bus import dead_letters, metrics, tracing
from event_bus.connection import BusConnection
from event_bus.delivery import BusTimings, Delivery
from event_bus.deps import ConsumerDeps
from event_bus.errors import CursorBeyondStream, MalformedEvent, PoisonMessage
from event_bus.incoming import Decoder, retry_after_s, retry_delay_s
from event_bus.publisher import Publisher
from event_bus.pulls import fetched, unsubscribe
from event_bus.readers import Wanted
from event_bus.topology import EVENTS
from service_kit.errors import as_errors
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
_BATCH: Final = 200
_FORGOTTEN_AFTER_S: Final = 60.0
_PAUSE_S: Final = 0.25
_PREFIX: Final = "replay-"
MAX_EPHEMERAL_FAILURES: Final = 5
"""Failures of one delivery after which an ephemeral reader goes on to the next."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read, by whom."""

    filters: tuple[str, ...]
    decoder: Decoder
    reader: str
    on_lost: Callable[[int, int], None] = lambda after, first: None
    """Called where the stream begins only at `first`, and facts up to `after` were read."""


def name_of(client_name: str) -> str:
    """What a reader that keeps its own place is called, in dead letters and for what is replayed to it."""
    return f"{_PREFIX}{client_name}"


def keeps_its_place(reader: str) -> bool:
    """Whether it is no durable: `name_of` made its name."""
    return reader.startswith(_PREFIX)


async def last_sequence(jetstream: JetStreamContext) -> int:
    """Sequence of the newest fact in the stream, 0 when there was never one."""
    return (await jetstream.stream_info(EVENTS)).state.last_seq


async def replay(
    reading: Reading,
    after_sequence: int,
    connection: BusConnection,
    timings: BusTimings,
    publisher: Publisher,
) -> AsyncGenerator[Delivery[Any], None]:
    """Every matching fact after `after_sequence`, then each new one. Raises CursorBeyondStream."""
    cursor = after_sequence
    created: datetime | None = None
    while True:
        if (info := await _stream_of(cursor, connection, reading.reader)) is None:
            await asyncio.sleep(_PAUSE_S)
            continue
        if cursor and created not in (None, info.created):
            raise CursorBeyondStream(made_anew(cursor))
        created = info.created
        if _is_behind(cursor, info):
            reading.on_lost(cursor, info.state.first_seq)
        async for raw in _one_consumer(reading, cursor, created, connection, timings):
            cursor = raw.metadata.sequence.stream
            try:
                delivery = reading.decoder.delivery(raw)
            except MalformedEvent as error:
                # The fact itself stays in its stream.
                await dead_letters.stored(publisher, raw, consumer=name_of(reading.reader), reason=str(error))
                continue
            yield delivery
        await asyncio.sleep(_PAUSE_S)


async def check_cursor(after_sequence: int, connection: BusConnection, reader: str) -> None:
    """Raises CursorBeyondStream; Unavailable while NATS does not answer."""
    if await _stream_of(after_sequence, connection, reader) is None:
        raise Unavailable(f"stream {EVENTS}, to read facts after {after_sequence}")


def made_anew(cursor: int) -> str:
    """What a reader is told whose stream was replaced by another one."""
    return f"cursor {cursor} is of an earlier stream {EVENTS}, which was made anew since: start from 0"


async def _stream_of(after_sequence: int, connection: BusConnection, reader: str) -> StreamInfo | None:
    """The stream, if it can be read from the cursor; None while NATS does not answer. Raises
    CursorBeyondStream.
    """
    try:
        info = await connection.jetstream().stream_info(EVENTS)
    except NatsError as error:
        _LOG.warning("replay_waits_for_nats", extra={"cursor": after_sequence, "error": repr(error)})
        return None
    state = info.state
    if after_sequence > state.last_seq:
        raise CursorBeyondStream(
            f"cursor {after_sequence} is beyond the newest fact {state.last_seq} of stream {EVENTS}: "
            "it is not the stream the cursor came from; start from 0 or restore the stream"
        )
    if _is_behind(after_sequence, info):
        extra = {"after_sequence": after_sequence, "first_sequence": state.first_seq, "stream": EVENTS}
        _LOG.error("facts_aged_out", extra={**extra, "reader": reader})
        metrics.GAPS.labels(name_of(reader)).inc()
    return info


def _is_behind(cursor: int, info: StreamInfo) -> bool:
    """Whether facts after the cursor are gone."""
    return 0 < cursor < info.state.first_seq - 1


async def _one_consumer(
    reading: Reading, cursor: int, created: datetime | None, connection: BusConnection, timings: BusTimings
) -> AsyncIterator[Msg]:
    """Messages after `cursor` of the stream that was made at `created`, until something is odd: another
    stream, a new epoch, a jump, an error. Then it ends.
    """
    epoch, expected = connection.epoch(), 1
    subscription: JetStreamContext.PullSubscription | None = None
    try:
        jetstream = connection.jetstream()
        name = (await connection.open_reader(_wanted(reading, cursor))).name
        subscription = await jetstream.pull_subscribe_bind(name, stream=EVENTS)
        # Made on a stream that came between, the consumer would wait there for `cursor` to be reached again.
        if (await jetstream.stream_info(EVENTS)).created != created:
            return
        while epoch == connection.epoch():
            for raw in await fetched(subscription, _BATCH, timings.pull_s):
                if raw.metadata.sequence.consumer != expected:
                    return
                expected += 1
                yield raw
    except NatsError as error:
        extra = {"reader": reading.reader, "cursor": cursor, "error": repr(error)}
        _LOG.warning("replay_interrupted", extra=extra)
    finally:
        if subscription is not None:
            await unsubscribe(subscription)


def _wanted(reading: Reading, cursor: int) -> Wanted:
    return Wanted(
        EVENTS, reading.filters, cursor, _FORGOTTEN_AFTER_S, description=f"replay of {reading.reader}"
    )


async def stored(
    reading: Reading, after_sequence: int, connection: BusConnection, timings: BusTimings
) -> list[Delivery[Any]]:
    """Every matching fact after `after_sequence` that the stream holds now. Raises Unavailable."""
    deadline = time.monotonic() + timings.publish_budget_s
    while True:
        try:
            found = await _all_pending(reading, after_sequence, connection, timings)
        except (NatsError, Unavailable) as error:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{reading.reader} cannot read facts after {after_sequence} of stream {EVENTS} within "
                    f"{timings.publish_budget_s:g} s: {error!r}"
                ) from error
            await asyncio.sleep(_PAUSE_S)
            continue
        deliveries = []
        for raw in found:
            try:
                deliveries.append(reading.decoder.delivery(raw))
            except MalformedEvent as error:
                _LOG.error("malformed_in_replay", extra={"reader": reading.reader, "reason": str(error)})
        return deliveries


async def _all_pending(
    reading: Reading, after_sequence: int, connection: BusConnection, timings: BusTimings
) -> list[Msg]:
    """As many messages as the server counts when it makes the consumer. Raises Unavailable for fewer."""
    reader = await connection.open_reader(_wanted(reading, after_sequence))
    wanted, found = reader.num_pending, list[Msg]()
    subscription = await connection.jetstream().pull_subscribe_bind(reader.name, stream=EVENTS)
    try:
        while len(found) < wanted:
            batch = await fetched(subscription, min(_BATCH, wanted - len(found)), timings.pull_s)
            for raw in batch:
                if raw.metadata.sequence.consumer != len(found) + 1:
                    raise Unavailable(f"delivery {len(found) + 1} of {wanted} was lost on its way")
                found.append(raw)
            if not batch:
                raise Unavailable(f"{len(found)} of {wanted} facts came within {timings.pull_s:g} s")
    finally:
        await unsubscribe(subscription)
        if connection.provision is None:  # without the right to, the server does it by itself
            await _forget(reader.name, connection.jetstream())
    return found


async def _forget(consumer: str, jetstream: JetStreamContext) -> None:
    try:
        await jetstream.delete_consumer(EVENTS, consumer)
    except NatsError as error:  # the server removes it by itself
        _LOG.debug("consumer_not_deleted", extra={"consumer": consumer, "error": repr(error)})


class Follower:
    """Gives an ephemeral reader one delivery at a time; one that keeps failing is skipped and logged."""

    def __init__(
        self, reader: str, handler: Callable[[Delivery[Any]], Awaitable[None]], deps: ConsumerDeps
    ) -> None:
        self._reader = reader
        self._handler = handler
        self._in_flight = deps.in_flight
        self._timings = deps.timings
        self._failures = 0
        self.after: int | None = None
        """Sequence of the last delivery that is done with."""

    async def follow(self, deliveries: AsyncIterator[Delivery[Any]]) -> None:
        """Until `deliveries` end."""
        async for delivery in deliveries:
            self._failures = 0
            pause_s = await self._tried(delivery)
            while pause_s is not None:
                await asyncio.sleep(pause_s)
                pause_s = await self._tried(delivery)
            self.after = delivery.sequence

    async def _tried(self, delivery: Delivery[Any]) -> float | None:
        """Seconds until the next attempt, None when the delivery is done with."""
        try:
            with (
                metrics.handling(self._reader),
                tracing.processing(
                    delivery.subject,
                    delivery.headers,
                    consumer=self._reader,
                    event_id=delivery.event_id,
                    num_delivered=self._failures + 1,
                ),
                tracing.marking_failure(),
            ):
                # A task of its own, so that a stop can wait for it.
                await self._in_flight.run(self._handled(delivery), self._reader)
        except Unavailable as unavailable:
            return retry_after_s(unavailable, self._timings)
        except PoisonMessage as poison:
            self._skip(delivery, poison.reason)
        except Exception as error:
            self._failures += 1
            extra = {"reader": self._reader, "event_id": delivery.event_id}
            _LOG.error("handler_failed", exc_info=error, extra=extra)
            if self._failures < MAX_EPHEMERAL_FAILURES:
                return retry_delay_s(self._failures, self._timings)
            self._skip(delivery, f"failed {self._failures} times, last: {error!r}")
        return None

    async def _handled(self, delivery: Delivery[Any]) -> None:
        with as_errors():
            await self._handler(delivery)

    def _skip(self, delivery: Delivery[Any], reason: str) -> None:
        metrics.DEAD_LETTERED.labels(self._reader).inc()
        extra = {"reader": self._reader, "event_id": delivery.event_id, "sequence": delivery.sequence}
        _LOG.error("skipped", extra={**extra, "reason": reason})
