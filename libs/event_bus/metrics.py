"""Prometheus series of the bus; names are an interface. Labels are durables and subject templates, never
ids.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from event_bus.errors import PoisonMessage
from upcycle.errors import Unavailable

DELIVERED: Final = Counter("upcycle_bus_delivered", "Messages given to a handler.", ["consumer"])
REDELIVERED: Final = Counter("upcycle_bus_redelivered", "Messages given to a handler again.", ["consumer"])
POSTPONED: Final = Counter("upcycle_bus_postponed", "Messages a handler asked to get later.", ["consumer"])
FAILED: Final = Counter("upcycle_bus_failed", "Handler failures, by exception class.", ["consumer", "error"])
DEAD_LETTERED: Final = Counter("upcycle_bus_dead_lettered", "Messages given up, with a reason.", ["consumer"])
IN_FLIGHT: Final = Gauge("upcycle_bus_in_flight", "Messages in handlers now.", ["consumer"])
HELD: Final = Gauge(
    "upcycle_bus_held", "Commands kept without a slot until this process can begin them.", ["consumer"]
)
HANDLED_S: Final = Histogram(
    "upcycle_bus_handled_seconds",
    "Time in the handler.",
    ["consumer"],
    buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300),
)
PUBLISHED_S: Final = Histogram(
    "upcycle_bus_published_seconds",
    "Time until the stream had an event on disk, retries included.",
    ["subject"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.5, 2, 10, 30),
)
PUBLISH_RETRIES: Final = Counter(
    "upcycle_bus_publish_retries", "Publish attempts after the first.", ["subject"]
)
PUBLISH_FAILED: Final = Counter(
    "upcycle_bus_publish_failed", "Publishes that were refused or ran out of time.", ["subject", "error"]
)
GAPS: Final = Counter(
    "upcycle_bus_gaps", "Times that messages were removed before a reader had read them.", ["consumer"]
)
ALARMS: Final = Gauge("upcycle_bus_alarms", "Gaps, missing streams and durables, bounds that are near.")
STREAM_FILLED: Final = Gauge(
    "upcycle_bus_stream_filled_ratio", "Share of its bound that a stream holds.", ["stream"]
)
UNKNOWN_FIELDS: Final = Counter(
    "upcycle_bus_unknown_fields",
    "Messages of a newer version, read without the fields that this one does not know.",
    ["type"],
)
MODELS: Final = Gauge("upcycle_provision_models", "Models that have their queues.")
ORPHANED: Final = Gauge("upcycle_provision_orphaned_commands", "Commands that wait for models that are gone.")
DECIDED_BEFORE: Final = Counter(
    "upcycle_bus_decided_before", "Decisions that found another, or themselves, decided.", ["subject"]
)
RECONNECTED: Final = Counter("upcycle_bus_reconnected", "Connections to NATS that were made again.")


@contextmanager
def handling(consumer: str, count: int = 1) -> Iterator[None]:
    """Count messages that a handler gets, the time in it, and how it ended."""
    DELIVERED.labels(consumer).inc(count)
    try:
        with IN_FLIGHT.labels(consumer).track_inprogress(), HANDLED_S.labels(consumer).time():
            yield
    except PoisonMessage:
        raise
    except Unavailable:
        POSTPONED.labels(consumer).inc()
        raise
    except Exception as error:
        FAILED.labels(consumer, type(error).__name__).inc()
        raise
