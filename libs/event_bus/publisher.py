"""Publishing: a PubAck means that the stream has the event on disk, exactly once per id within its window."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from nats.errors import ConnectionReconnectingError, NoRespondersError, OutboundBufferLimitError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import PubAck as NatsPubAck
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from event_bus import codec, metrics, tracing
from event_bus.delivery import BusTimings, PubAck
from event_bus.errors import BusError, EventTooLarge, QueueFull
from event_bus.topology import MAX_EVENT_BYTES
from identities import subjects
from upcycle.errors import Unavailable

_STREAM_IS_FULL: Final = 10077
_MESSAGE_TOO_LARGE: Final = 10054
_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 1.0
_PASSING = (
    NoStreamResponseError,
    NoRespondersError,
    NatsTimeout,
    ServiceUnavailableError,
    ConnectionReconnectingError,
    OutboundBufferLimitError,
)


class Publisher:
    """Publishes with one deterministic id until the stream confirms or the budget is spent."""

    def __init__(self, jetstream: Callable[[], JetStreamContext], timings: BusTimings) -> None:
        self._jetstream = jetstream
        self._timings = timings
        self._attempts: set[asyncio.Task[NatsPubAck]] = set()

    def try_again_now(self) -> None:
        """The connection was made again: what was sent over the old one will not be answered."""
        for attempt in self._attempts:
            attempt.cancel()

    async def publish(
        self,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
        *,
        stream: str,
        limit: int = MAX_EVENT_BYTES,
    ) -> PubAck:
        """Raises EventTooLarge and QueueFull at once, Unavailable when the budget is spent."""
        event_id, template = headers[codec.EVENT_ID], subjects.template_of(subject)
        outgoing = dict(headers)
        started = time.monotonic()
        with tracing.publishing(subject, event_id, outgoing):
            codec.check_size(subject, payload, outgoing, limit=limit)
            try:
                ack = await self._until_acked(subject, payload, outgoing, stream)
            except (BusError, Unavailable) as error:
                metrics.PUBLISH_FAILED.labels(template, type(error).__name__).inc()
                raise
        metrics.PUBLISHED_S.labels(template).observe(time.monotonic() - started)
        return ack

    async def _until_acked(
        self, subject: str, payload: bytes, headers: dict[str, str], stream: str
    ) -> PubAck:
        deadline = time.monotonic() + self._timings.publish_budget_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self._attempt(subject, payload, headers, stream, deadline)
            except _PASSING as error:
                if isinstance(error, ServiceUnavailableError) and error.err_code == _STREAM_IS_FULL:
                    raise QueueFull(_full(stream, subject, error)) from error
                if time.monotonic() + pause_s >= deadline:
                    raise Unavailable(
                        f"stream {stream} did not confirm {headers[codec.EVENT_ID]!r} on {subject} "
                        f"within {self._timings.publish_budget_s:g} s (last: {error!r}); "
                        "publish again with the same id"
                    ) from error
            except APIError as error:
                raise _refusal(stream, subject, error) from error
            metrics.PUBLISH_RETRIES.labels(subjects.template_of(subject)).inc()
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    async def _attempt(
        self, subject: str, payload: bytes, headers: dict[str, str], stream: str, deadline: float
    ) -> PubAck:
        timeout_s = max(0.1, min(self._timings.publish_timeout_s, deadline - time.monotonic()))
        # A publish without stream= is core NATS: no confirmation, and silently lost where no stream listens.
        sending = self._jetstream().publish(
            subject, payload, timeout=timeout_s, stream=stream, headers=dict(headers)
        )
        attempt = asyncio.create_task(sending)
        self._attempts.add(attempt)
        try:
            await asyncio.wait({attempt})
        finally:
            self._attempts.discard(attempt)
            attempt.cancel()
        if attempt.cancelled():
            raise NatsTimeout
        ack = attempt.result()
        return PubAck(ack.stream, ack.seq, bool(ack.duplicate))


def _full(stream: str, subject: str, error: APIError) -> str:
    return (
        f"stream {stream} takes no more messages ({error.description}); {subject} was refused: "
        "slow down and ask again"
    )


def _refusal(stream: str, subject: str, error: APIError) -> BusError:
    if error.err_code == _STREAM_IS_FULL:
        return QueueFull(_full(stream, subject, error))
    if error.err_code == _MESSAGE_TOO_LARGE:
        return EventTooLarge(
            f"stream {stream} refuses the size of a message for {subject}: {error.description}"
        )
    return BusError(f"stream {stream} refuses {subject}: {error}")
