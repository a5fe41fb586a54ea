"""Publishing: a PubAck means that the stream has the event on disk, exactly once per id within its window."""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nats.errors import ConnectionReconnectingError, NoRespondersError, OutboundBufferLimitError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import PubAck as NatsPubAck
from nats.js.errors import APIError, NoStreamResponseError, ServiceUnavailableError

from event_bus import codec, metrics, tracing
from event_bus.delivery import BusTimings, PubAck
from event_bus.errors import AlreadyDecided, BusError, EventTooLarge, QueueFull
from event_bus.topology import MAX_EVENT_BYTES
from identities import subjects
from upcycle.errors import Unavailable

_STREAM_IS_FULL: Final = 10077
_MESSAGE_TOO_LARGE: Final = 10054
WRONG_LAST_SEQUENCE: Final = 10071
_ALREADY_DECIDED: Final = frozenset({WRONG_LAST_SEQUENCE, 10164, 10201})
"""Another last sequence than expected, also one that is still on its way to the replicas; a known id in a
batch.
"""
_TAKEN_LATER: Final = frozenset({10158, 10176, 10210, 10211})
"""Nothing is stored, and the same is sent again: its id is on its way to the replicas, a message of a batch
was lost, or the server holds as many unfinished batches as it may.
"""
_STREAM: Final = "Nats-Expected-Stream"
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


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message with its address."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stored:
    """A message that was encoded, and given its subject, when it was stored. trace: the headers of the trace
    that it belongs to."""

    message: codec.Encoded
    subject: str
    event_id: str
    trace: Mapping[str, str]

    def outgoing(self) -> Outgoing:
        """With the headers of its publish, a span in its own trace."""
        headers = codec.headers_for(self.message.message_type, self.event_id)
        with tracing.trace_of(self.trace), tracing.publishing(self.subject, self.event_id, headers):
            return Outgoing(self.subject, self.message.payload, headers)


Send = Callable[[float], Coroutine[Any, Any, NatsPubAck]]
"""Sends once; waits so many seconds for the answer."""


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

            def send(timeout_s: float) -> Coroutine[Any, Any, NatsPubAck]:
                # Without stream= it is core NATS: no confirmation, and silently lost where no stream listens.
                return self._jetstream().publish(
                    subject, payload, timeout=timeout_s, stream=stream, headers=dict(outgoing)
                )

            ack = await self._measured(send, subject, event_id, stream)
        metrics.PUBLISHED_S.labels(template).observe(time.monotonic() - started)
        return ack

    async def publish_together(self, messages: Sequence[Outgoing], *, stream: str) -> None:
        """Store all messages, next to each other, or none. One that names its trace keeps it. Raises like
        `publish`, and AlreadyDecided."""
        last, trace = messages[-1], dict[str, str]()
        event_id = last.headers[codec.EVENT_ID]
        with tracing.publishing(last.subject, event_id, trace):
            batch = [Outgoing(one.subject, one.payload, {**trace, **one.headers}) for one in messages]
            for one in batch:
                headers = {**one.headers, **_batch_headers("0" * 32, len(batch), last=True)}
                codec.check_size(one.subject, one.payload, headers)
            send = partial(self._send_together, batch, stream)
            await self._measured(send, last.subject, event_id, stream)

    async def _send_together(self, batch: Sequence[Outgoing], stream: str, timeout_s: float) -> NatsPubAck:
        """nats-py has no batches: the messages carry the batch's name, and the last one commits it."""
        client, name = self._jetstream()._nc, uuid.uuid4().hex
        *others, last = [
            (one, {**one.headers, **_batch_headers(name, number, last=number == len(batch)), _STREAM: stream})
            for number, one in enumerate(batch, 1)
        ]
        for one, headers in others:
            await client.publish(one.subject, one.payload, headers=headers)
        answer = await client.request(last[0].subject, last[0].payload, timeout=timeout_s, headers=last[1])
        said = json.loads(answer.data)
        if "error" in said:
            raise APIError.from_error(said["error"])
        return NatsPubAck(stream=said["stream"], seq=said["seq"])

    async def _measured(self, send: Send, subject: str, event_id: str, stream: str) -> PubAck:
        try:
            return await self._until_acked(send, subject, event_id, stream)
        except AlreadyDecided:
            raise  # an answer, not a failure
        except (BusError, Unavailable) as error:
            metrics.PUBLISH_FAILED.labels(subjects.template_of(subject), type(error).__name__).inc()
            raise

    async def _until_acked(self, send: Send, subject: str, event_id: str, stream: str) -> PubAck:
        deadline = time.monotonic() + self._timings.publish_budget_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await self._attempt(send, deadline)
            except (*_PASSING, APIError) as error:
                if isinstance(error, APIError) and not _is_passing(error):
                    raise _refusal(stream, subject, error) from error
                if time.monotonic() + pause_s >= deadline:
                    raise Unavailable(
                        f"stream {stream} did not confirm {event_id!r} on {subject} "
                        f"within {self._timings.publish_budget_s:g} s (last: {error!r}); "
                        "publish again with the same id"
                    ) from error
            metrics.PUBLISH_RETRIES.labels(subjects.template_of(subject)).inc()
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    async def _attempt(self, send: Send, deadline: float) -> PubAck:
        timeout_s = max(0.1, min(self._timings.publish_timeout_s, deadline - time.monotonic()))
        attempt = asyncio.create_task(send(timeout_s))
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


def _batch_headers(name: str, number: int, *, last: bool) -> dict[str, str]:
    headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
    return {**headers, "Nats-Batch-Commit": "1"} if last else headers


def _full(stream: str, subject: str, error: APIError) -> str:
    return (
        f"stream {stream} takes no more messages ({error.description}); {subject} was refused: "
        "slow down and ask again"
    )


def _is_passing(error: APIError) -> bool:
    """Whether the same message may be taken in a moment."""
    if error.err_code == _STREAM_IS_FULL:
        return False
    return isinstance(error, ServiceUnavailableError) or error.err_code in _TAKEN_LATER


def _refusal(stream: str, subject: str, error: APIError) -> BusError:
    if error.err_code in _ALREADY_DECIDED:
        return AlreadyDecided(f"stream {stream} holds a decision about what {subject} decides")
    if error.err_code == _STREAM_IS_FULL:
        return QueueFull(_full(stream, subject, error))
    if error.err_code == _MESSAGE_TOO_LARGE:
        return EventTooLarge(
            f"stream {stream} refuses the size of a message for {subject}: {error.description}"
        )
    return BusError(f"stream {stream} refuses {subject}: {error}")
