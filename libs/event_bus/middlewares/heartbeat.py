"""Heartbeat: while a handler works, the server gets "in progress" for its message, for a bounded time."""

import asyncio
from typing import Any

from faststream.message import StreamMessage
from faststream.types import AsyncFuncAny

from event_bus.incoming import heartbeats
from event_bus.middlewares.base import EventMiddleware


class HeartbeatMiddleware(EventMiddleware):
    """Innermost: a slow handler keeps its message; one that exceeds handler_timeout_s has failed."""

    async def consume_scope(self, call_next: AsyncFuncAny, msg: StreamMessage[Any]) -> Any:
        """Raises TimeoutError when the handler takes too long."""
        async with heartbeats([self.msg], self.spec.ack_wait_s), asyncio.timeout(self.spec.handler_timeout_s):
            return await call_next(msg)
