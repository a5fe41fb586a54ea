"""Decoding: the handler gets a protobuf event of the type that the subject promises.

The decoder is the subscriber's. FastStream would call it inside the handler's wrapper; called here, it fails
before the message counts as delivered to the handler.
"""

from typing import Annotated, Any, Final

from faststream import Context
from faststream.message import StreamMessage
from faststream.types import AsyncFuncAny

from event_bus.delivery import Delivery
from event_bus.incoming import delivery_of
from event_bus.middlewares.base import FAILURES, EventMiddleware

_KEY: Final = "delivery"
CurrentDelivery = Annotated[Delivery[Any], Context(_KEY)]
"""Annotation of a handler's parameter: sequence, event id, time and headers of the event that it handles."""


class DecodingMiddleware(EventMiddleware):
    """Decodes once; FastStream passes the same event to the handler."""

    async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
        """Raises MalformedEvent with the reason."""
        event: Any = await msg.decode()
        with self.context.scope(_KEY, delivery_of(self.msg, event, self.context.get_local(FAILURES))):
            return await call_next(msg)
