"""From raw messages to deliveries, and the small services every consumer needs: heartbeats, backoff, what
is in flight.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from event_bus import codec
from event_bus.delivery import BusTimings, Delivery
from event_bus.errors import MalformedEvent, NewerEvent
from event_bus.topology import ConsumerSpec, Topology
from identities import subjects
from identities.errors import InvalidIdentity
from service_kit.errors import as_errors
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
BEATS_PER_ACK_WAIT: Final = 3
_MAX_RETRY_AFTER_S: Final = 300.0
_NACK_S: Final = 5.0
"""What cancelled handlers get to nack their messages; longer than one exchange with a server that is down."""


class Decoder:
    """Turns raw messages into deliveries; the subject decides the type."""

    def __init__(self, types: Mapping[str, type[Message]]) -> None:
        self._types = {subjects.parse(subject).kind: message_type for subject, message_type in types.items()}

    @classmethod
    def of(cls, topology: Topology, spec: ConsumerSpec) -> "Decoder":
        """The decoder of everything that a durable reads."""
        return cls(dict(topology.bound_by(spec)))

    def delivery(self, raw: Msg) -> Delivery[Any]:
        """Raises MalformedEvent with the reason, NewerEvent."""
        return delivery_of(raw, self.message(raw.subject, raw.data, raw.headers or {}))

    def message(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> Message:
        """The message alone. Raises MalformedEvent with the reason, NewerEvent."""
        try:
            kind = subjects.parse(subject).kind
        except InvalidIdentity as error:
            raise MalformedEvent(f"nothing is known about subject {subject!r}") from error
        if (message_type := self._types.get(kind)) is None:
            raise NewerEvent(f"{kind!r} is not known to this version of the service: upgrade it")
        return codec.decode(message_type, payload, headers)


def delivery_of(raw: Msg, message: Message, failures: int = 0) -> Delivery[Any]:
    """A decoded message with what the bus knows of it."""
    where, headers = raw.metadata, raw.headers or {}
    return Delivery(
        message=message,
        subject=subjects.first_time(raw.subject),
        event_id=codec.event_id_of(raw.subject, headers) or f"{where.stream}-{where.sequence.stream}",
        sequence=where.sequence.stream,
        num_delivered=where.num_delivered,
        published_at=where.timestamp,
        failures=failures,
        headers=headers,
    )


@asynccontextmanager
async def in_work(raws: Sequence[Msg], spec: ConsumerSpec) -> AsyncIterator[None]:
    """While the body runs, tell the server every ack_wait/3 that the messages are in work. Raises
    TimeoutError when it takes longer than handler_timeout_s.
    """
    beating = asyncio.create_task(_beat(raws, spec))
    try:
        with as_errors():
            async with asyncio.timeout(spec.handler_timeout_s):
                yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def _beat(raws: Sequence[Msg], spec: ConsumerSpec) -> None:
    async with asyncio.timeout(spec.handler_timeout_s):  # also when the handler goes on after that
        while True:
            await asyncio.sleep(spec.ack_wait_s / BEATS_PER_ACK_WAIT)
            for raw in raws:
                try:
                    await raw.in_progress()
                except NatsError as error:  # a missed beat costs a duplicate delivery, never the work
                    _LOG.warning("heartbeat_missed", extra={"subject": raw.subject, "error": repr(error)})


async def nack(raw: Msg, consumer: str, delay_s: float = 0.0) -> None:
    """Have a message redelivered after a delay, unless it was answered."""
    if raw._ackd:
        return
    try:
        await raw.nak(delay=delay_s or None)
    except NatsError as error:  # then it is redelivered after ack_wait
        _LOG.warning("nack_not_sent", extra={"consumer": consumer, "error": repr(error)})


def retry_delay_s(failures: int, timings: BusTimings) -> float:
    """Delay before the next attempt of a message that failed `failures` >= 1 times."""
    return float(min(timings.max_retry_s, timings.first_retry_s * 2.0 ** min(failures - 1, 30)))


def retry_after_s(error: Unavailable, timings: BusTimings) -> float:
    """Delay before a handler that raised Unavailable gets its message again."""
    asked = timings.unavailable_s if error.retry_after_s is None else error.retry_after_s
    return min(max(0.0, asked), _MAX_RETRY_AFTER_S) if math.isfinite(asked) else timings.unavailable_s


class InFlight:
    """The handlers that run now. At stop they get a while to finish; then they are cancelled, and their
    messages nacked.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.draining = False

    def stuck(self) -> list[str]:
        """Names of those that go on although they were cancelled: handler_timeout_s is over."""
        return [task.get_name() for task in self._tasks if task.cancelling()]

    async def run(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Wait for `work`, which goes on when the caller is cancelled: the drain decides how long."""
        return await asyncio.shield(self.start(work, name))

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Begin `work`, which the drain waits for."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, within_s: float) -> None:
        """Wait for what is in flight; cancel what is not done in time."""
        self.draining = True
        if not self._tasks:
            return
        _, late = await asyncio.wait(set(self._tasks), timeout=within_s)
        for task in late:
            task.cancel()
        if late:
            _LOG.warning("handlers_cancelled_at_drain", extra={"count": len(late), "drain_s": within_s})
            await asyncio.wait(late, timeout=_NACK_S)
