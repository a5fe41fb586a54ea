"""One message at a time: decode, run the handler under heartbeats in its span, then say exactly one word to
the server.

The acknowledgement is entirely ours (FastStream's policy is MANUAL): return acks, `Unavailable` and failures nak
with a delay, what is hopeless goes to the dead letters and is terminated only after it is stored there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from event_bus import codec, dead_letters, metrics, tracing
from event_bus.attempts import AttemptNotes, Attempts
from event_bus.delivery import BusTimings, Delivery
from event_bus.errors import BusError, MalformedEvent, PoisonMessage
from event_bus.incoming import Decoder, InFlight, heartbeats, retry_after_s, retry_delay_s
from event_bus.publisher import Publisher
from event_bus.topology import ConsumerSpec
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
MAX_UNANSWERED: Final = 10
"""Deliveries that may end in silence (a dead process) before the message itself is blamed."""
_BUS_TROUBLE_DELAY_S: Final = 2.0
_HAND_BACK_S: Final = 3.0

Handler = Callable[[Delivery[Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Done:
    """Acknowledge."""


@dataclass(frozen=True, slots=True)
class Again:
    """Hand back; it comes again after the delay."""

    delay_s: float
    attempts: Attempts | None
    """The note to keep, if there is something to note."""


@dataclass(frozen=True, slots=True)
class Dead:
    """Give up, with the reason."""

    reason: str


Verdict = Done | Again | Dead


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where a consumer puts what it cannot acknowledge."""

    publisher: Publisher
    notes: AttemptNotes
    in_flight: InFlight
    timings: BusTimings


class SlotConsumer:
    """Consumes raw messages of one durable, one per call; never raises but for cancellation."""

    def __init__(self, spec: ConsumerSpec, decoder: Decoder, handler: Handler, outlets: Outlets) -> None:
        self._spec = spec
        self._decoder = decoder
        self._handler = handler
        self._out = outlets

    async def consume(self, raw: Msg) -> None:
        """Bring one message to its verdict and tell the server."""
        work = asyncio.create_task(
            self._judge_and_say(raw), name=f"{self._spec.durable}/{raw.metadata.sequence.stream}"
        )
        self._out.in_flight.track(work)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            # Either the drain cancelled the work, which has handed back, or this slot is being torn down.
            if not work.cancelling():
                work.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({work})
            if (current := asyncio.current_task()) is not None and current.cancelling():
                raise

    async def _judge_and_say(self, raw: Msg) -> None:
        try:
            verdict = await self._judge(raw)
        except asyncio.CancelledError:
            await self._hand_back(raw)
            raise
        await self._say(raw, verdict)

    async def _judge(self, raw: Msg) -> Verdict:
        try:
            attempts = await self._out.notes.read(raw)
        except (BusError, Unavailable) as error:
            _LOG.warning("attempts_unknown", extra={"consumer": self._spec.durable, "error": str(error)})
            return Again(_BUS_TROUBLE_DELAY_S, None)
        num_delivered = raw.metadata.num_delivered
        if self._spec.max_deliver > 0 and attempts.unanswered(num_delivered) >= MAX_UNANSWERED:
            return Dead(
                f"{attempts.unanswered(num_delivered)} deliveries ended without an answer: "
                "it seems to kill its handler"
            )
        try:
            delivery = self._decoder.delivery(raw)
        except MalformedEvent as error:
            return Dead(str(error))
        self._count(num_delivered)
        with tracing.processing(
            raw.subject,
            raw.headers or {},
            consumer=self._spec.durable,
            event_id=delivery.event_id,
            num_delivered=num_delivered,
        ) as span:
            verdict = await self._run(raw, delivery, attempts)
            if isinstance(verdict, Dead):
                span.set_attribute("upcycle.bus.dead_letter", verdict.reason)
        return verdict

    def _count(self, num_delivered: int) -> None:
        metrics.DELIVERED.labels(self._spec.durable).inc()
        if num_delivered > 1:
            metrics.REDELIVERED.labels(self._spec.durable).inc()

    async def _run(self, raw: Msg, delivery: Delivery[Any], attempts: Attempts) -> Verdict:
        durable, limit_s = self._spec.durable, self._spec.handler_timeout_s
        try:
            with (
                metrics.IN_FLIGHT.labels(durable).track_inprogress(),
                metrics.HANDLED_S.labels(durable).time(),
            ):
                async with heartbeats([raw], self._spec.ack_wait_s), asyncio.timeout(limit_s):
                    await self._handler(delivery)
        except Unavailable as unavailable:
            metrics.POSTPONED.labels(durable).inc()
            return Again(
                retry_after_s(unavailable, self._out.timings),
                replace(attempts, answered=attempts.answered + 1),
            )
        except PoisonMessage as poison:
            return Dead(poison.reason)
        except Exception as error:
            return self._after_failure(raw, delivery, attempts, error)
        return Done()

    def _after_failure(
        self, raw: Msg, delivery: Delivery[Any], before: Attempts, error: Exception
    ) -> Verdict:
        attempts = Attempts(before.answered + 1, before.failures + 1)
        metrics.FAILED.labels(self._spec.durable, type(error).__name__).inc()
        tracing.mark_failed(error)
        _LOG.error(
            "handler_failed",
            exc_info=error,
            extra={
                "consumer": self._spec.durable,
                "event_id": delivery.event_id,
                "failures": attempts.failures,
                "max_deliver": self._spec.max_deliver,
                "num_delivered": raw.metadata.num_delivered,
            },
        )
        if 0 < self._spec.max_deliver <= attempts.failures:
            return Dead(f"failed {attempts.failures} times, last: {error!r}")
        return Again(retry_delay_s(attempts.failures, self._out.timings), attempts)

    async def _say(self, raw: Msg, verdict: Verdict) -> None:
        try:
            match verdict:
                case Done():
                    await raw.ack()
                case Again(delay_s, attempts):
                    if attempts is not None:
                        await self._out.notes.write(raw, attempts)
                    await raw.nak(delay=delay_s or None)
                case Dead(reason):
                    await self._dead_letter(raw, reason)
        except NatsError as error:  # unheard: the message comes again after ack_wait
            _LOG.warning("verdict_not_heard", extra={"consumer": self._spec.durable, "error": repr(error)})

    async def _dead_letter(self, raw: Msg, reason: str) -> None:
        where = raw.metadata.sequence.stream
        _LOG.error(
            "dead_lettered",
            extra={
                "consumer": self._spec.durable,
                "subject": raw.subject,
                "sequence": where,
                "reason": reason,
            },
        )
        try:
            await dead_letters.store(self._out.publisher, raw, consumer=self._spec.durable, reason=reason)
        except (BusError, Unavailable) as error:
            _LOG.error("dead_letter_not_stored", extra={"sequence": where, "error": str(error)})
            await raw.nak(delay=_BUS_TROUBLE_DELAY_S)
            return
        await raw.term()

    async def _hand_back(self, raw: Msg) -> None:
        """A drain is nobody's failure: note that it was answered, and let another process have it at once."""
        try:
            async with asyncio.timeout(_HAND_BACK_S):
                attempts = await self._out.notes.read(raw)
                await self._out.notes.write(raw, replace(attempts, answered=attempts.answered + 1))
                await raw.nak()
        except (
            NatsError,
            BusError,
            TimeoutError,
        ) as error:  # unheard: the message comes again after ack_wait
            _LOG.warning("hand_back_not_heard", extra={"consumer": self._spec.durable, "error": repr(error)})
        _LOG.info(
            "handed_back",
            extra={"consumer": self._spec.durable, "event_id": (raw.headers or {}).get(codec.EVENT_ID)},
        )
