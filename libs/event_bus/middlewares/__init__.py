"""What happens to a message before and after its handler, as FastStream middlewares, outermost first.

acknowledgement   FastStream's own: sends ack, nack or term to the server
  verdict         how processing ended -> ack, nack, or dead letter and term
    trace         the span of the handling
      attempts    failures so far -> nack with a growing delay, or give the message up
        decoding  bytes -> protobuf event and Delivery
          metrics counters, time in the handler
            heartbeat  keeps the message while the handler works, within its time limit
              handler
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from event_bus.deps import ConsumerDeps
from event_bus.middlewares.attempts import AttemptsMiddleware
from event_bus.middlewares.base import EventMiddleware
from event_bus.middlewares.decoding import DecodingMiddleware
from event_bus.middlewares.heartbeat import HeartbeatMiddleware
from event_bus.middlewares.metrics import MetricsMiddleware
from event_bus.middlewares.trace import TraceMiddleware
from event_bus.middlewares.verdict import VerdictMiddleware

ORDER: Sequence[type[EventMiddleware]] = (
    VerdictMiddleware,
    TraceMiddleware,
    AttemptsMiddleware,
    DecodingMiddleware,
    MetricsMiddleware,
    HeartbeatMiddleware,
)


def event_middlewares(deps: ConsumerDeps) -> list[Any]:
    """The middlewares of a broker, outermost first."""
    return [partial(middleware, deps=deps) for middleware in ORDER]
