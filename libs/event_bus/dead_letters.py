"""Dead letters: the message as it was, on `up.<tenant>.dlq.<its subject>`, with headers that say why."""

import logging
from typing import Final

from nats.aio.msg import Msg

from event_bus import codec, metrics
from event_bus.errors import BusError
from event_bus.publisher import Publisher
from event_bus.topology import DLQ, MAX_EVENT_BYTES
from identities import subjects
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
REASON: Final = "Upcycle-Reason"
STREAM: Final = "Upcycle-Stream"
CONSUMER: Final = "Upcycle-Consumer"
SEQUENCE: Final = "Upcycle-Sequence"
DELIVERIES: Final = "Upcycle-Deliveries"
ORIGINAL_ID: Final = "Upcycle-Event-Id"
_MAX_REASON: Final = 1000
_SERVER_HEADERS: Final = "Nats-"


async def stored(publisher: Publisher, raw: Msg, *, consumer: str, reason: str) -> bool:
    """Store the dead letter; False, and an error in the log, when that fails. The caller terminates the
    message after that, so that it is in one place at least.
    """
    sequence = raw.metadata.sequence.stream
    extra = {"consumer": consumer, "subject": raw.subject, "sequence": sequence, "reason": reason}
    _LOG.error("dead_lettered", extra=extra)
    try:
        await _store(publisher, raw, consumer, reason)
    except (BusError, Unavailable) as error:
        _LOG.error("dead_letter_not_stored", extra={**extra, "error": str(error)})
        return False
    return True


async def _store(publisher: Publisher, raw: Msg, consumer: str, reason: str) -> None:
    where = raw.metadata
    headers = {
        key: value for key, value in (raw.headers or {}).items() if not key.startswith(_SERVER_HEADERS)
    }
    headers |= {
        codec.EVENT_ID: f"dlq-{where.stream}-{consumer}-{where.sequence.stream}",
        ORIGINAL_ID: codec.event_id_of(raw.subject, raw.headers or {}),
        REASON: one_line(reason),
        STREAM: where.stream,
        CONSUMER: consumer,
        SEQUENCE: str(where.sequence.stream),
        DELIVERIES: str(where.num_delivered),
    }
    await publisher.publish(
        subjects.dead_letter(subjects.first_time(raw.subject)),
        raw.data,
        headers,
        stream=DLQ,
        limit=MAX_EVENT_BYTES + 8 * 1024,
    )
    metrics.DEAD_LETTERED.labels(consumer).inc()


def one_line(reason: str) -> str:
    """A reason fit for a header: printable ASCII, one line, bounded."""
    flat = " ".join(reason.split())[:_MAX_REASON]
    return flat.encode("ascii", "backslashreplace").decode()[: 2 * _MAX_REASON] or "no reason given"
