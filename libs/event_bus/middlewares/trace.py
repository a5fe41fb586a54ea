"""Trace: handling a message is a CONSUMER span below the span of its publish."""

from typing import Any

from faststream.message import StreamMessage
from faststream.types import AsyncFuncAny

from event_bus import codec, tracing
from event_bus.errors import MalformedEvent, PoisonMessage
from event_bus.middlewares.base import EventMiddleware


class TraceMiddleware(EventMiddleware):
    """Outside the attempts, so that the span knows when a message was given up."""

    async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
        """Handle the message within its span."""
        headers = self.msg.headers or {}
        with tracing.processing(
            self.msg.subject,
            headers,
            consumer=self.spec.durable,
            event_id=codec.event_id_of(self.msg.subject, headers),
            num_delivered=self.msg.metadata.num_delivered,
        ) as span:
            try:
                return await call_next(msg)
            except (PoisonMessage, MalformedEvent) as error:
                span.set_attribute("upcycle.bus.dead_letter", str(error))
                raise
