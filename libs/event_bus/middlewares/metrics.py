"""Metrics: how many messages a handler got, how long it took, how it ended."""

from typing import Any

from faststream.message import StreamMessage
from faststream.types import AsyncFuncAny

from event_bus import metrics
from event_bus.errors import PoisonMessage
from event_bus.middlewares.base import EventMiddleware
from upcycle.errors import Unavailable


class MetricsMiddleware(EventMiddleware):
    """Counts what the handler itself returned or raised."""

    async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
        """Count one delivery."""
        durable = self.spec.durable
        metrics.DELIVERED.labels(durable).inc()
        if self.msg.metadata.num_delivered > 1:
            metrics.REDELIVERED.labels(durable).inc()
        try:
            with (
                metrics.IN_FLIGHT.labels(durable).track_inprogress(),
                metrics.HANDLED_S.labels(durable).time(),
            ):
                return await call_next(msg)
        except PoisonMessage:
            raise
        except Unavailable:
            metrics.POSTPONED.labels(durable).inc()
            raise
        except Exception as error:
            metrics.FAILED.labels(durable, type(error).__name__).inc()
            raise
