"""Decoding: the handler gets a protobuf event of the type that the subject promises.

The decoder is the subscriber's. FastStream would call it inside the handler's wrapper; called here, it fails
before the message counts as delivered to the handler.
"""

import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, TypeAlias

from faststream.message import StreamMessage
from faststream.types import AsyncFuncAny
from google.protobuf.message import Message

from event_bus.delivery import Delivery
from event_bus.errors import BusError
from event_bus.incoming import delivery_of
from event_bus.middlewares.base import FAILURES, EventMiddleware

_CURRENT: Final[ContextVar[Delivery[Any]]] = ContextVar("delivery")
CurrentDelivery: TypeAlias = Delivery[Any]
"""Annotation of a handler's second parameter: sequence, event id, time and headers of the event that it
handles.
"""


def with_delivery(handler: Callable[..., Awaitable[Any]]) -> Callable[[Message], Awaitable[Any]]:
    """The handler as a function of the event alone. FastStream's own injection would fill the second
    parameter in another thread, for a third of a millisecond a message. Raises BusError for any other form.
    """
    parameters = len(inspect.signature(handler).parameters)
    if parameters == 1:
        return handler
    if parameters != 2:
        raise BusError(f"handler {handler.__qualname__} takes (event) or (event, delivery), not {parameters}")

    @wraps(handler)
    async def with_one(event: Message) -> Any:
        return await handler(event, _CURRENT.get())

    del with_one.__wrapped__  # FastStream reads the signature
    return with_one


class DecodingMiddleware(EventMiddleware):
    """Decodes once; FastStream passes the same event to the handler."""

    async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
        """Raises MalformedEvent with the reason."""
        event: Any = await msg.decode()
        token = _CURRENT.set(delivery_of(self.msg, event, self.context.get_local(FAILURES)))
        try:
            return await call_next(msg)
        finally:
            _CURRENT.reset(token)
