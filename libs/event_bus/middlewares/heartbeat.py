"""Heartbeat: while a handler works, the server gets "in progress" for its message, for a bounded time."""

from typing import Any

from faststream.message import StreamMessage
from faststream.types import AsyncFuncAny

from event_bus.incoming import in_work
from event_bus.middlewares.base import EventMiddleware


class HeartbeatMiddleware(EventMiddleware):
    """Innermost: a slow handler keeps its message; one that exceeds handler_timeout_s has failed."""

    async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
        """Raises TimeoutError when the handler takes too long."""
        async with in_work([self.msg], self.spec):
            return await call_next(msg)
