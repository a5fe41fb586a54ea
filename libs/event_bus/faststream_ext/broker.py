"""FastStream's broker, stopped without the drain of its client.

That drain waits for messages that will not be fetched any more, and raises while NATS is down.
"""

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.errors import Error as NatsError

_LOG = logging.getLogger(__name__)


class EventBroker(NatsBroker):
    """Stops without raising for NATS, within bounds."""

    def __init__(self, servers: Sequence[str], *, close_s: float, **options: Any) -> None:
        super().__init__(servers, **options)
        self._close_s = close_s

    async def stop_subscribers(self) -> None:
        """Take no new message; returns when no subscriber holds one, or after graceful_timeout."""
        try:
            await super(NatsBroker, self).stop()
        except ExceptionGroup as error:
            _LOG.warning("subscribers_not_stopped", extra={"error": repr(error)})

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, send what was acknowledged, close the connection."""
        await self.stop_subscribers()
        if self._connection is not None:
            await self._flush(self._connection)
            await self._cut(self._connection)
            self._connection = None

    async def _flush(self, client: Client) -> None:
        """Send the acknowledgements, which have no answer; those that are lost cause a redelivery."""
        if not client.is_connected:
            return
        try:
            await client.flush(timeout=max(1, int(self._close_s)))
        except (NatsError, TimeoutError, OSError) as error:
            _LOG.warning("bus_not_flushed", extra={"close_s": self._close_s, "error": repr(error)})

    async def _cut(self, client: Client) -> None:
        try:
            async with asyncio.timeout(self._close_s):
                await client.close()
        except (NatsError, TimeoutError, OSError) as error:
            _LOG.warning("bus_not_closed", extra={"error": repr(error)})
