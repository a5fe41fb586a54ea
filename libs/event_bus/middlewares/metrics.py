"""Metrics: how many messages a handler got, how long it took, how it ended."""

from typing import Any

from faststream.message import StreamMessage
from faststream.types import AsyncFuncAny

from event_bus import metrics
from event_bus.middlewares.base import EventMiddleware


class MetricsMiddleware(EventMiddleware):
    """Counts what the handler itself returned or raised."""

    async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
        """Count one delivery."""
        if self.msg.metadata.num_delivered > 1:
            metrics.REDELIVERED.labels(self.spec.durable).inc()
        with metrics.handling(self.spec.durable):
            return await call_next(msg)
