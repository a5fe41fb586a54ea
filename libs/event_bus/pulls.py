"""Pull subscriptions of nats-py: used directly where order or a cursor matters, patient for the slots."""

import asyncio
import logging
import time
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext

_LOG = logging.getLogger(__name__)
_PAUSE_S: Final = 0.25


async def fetched(subscription: JetStreamContext.PullSubscription, batch: int, timeout_s: float) -> list[Msg]:
    """Up to `batch` messages as soon as there is one; none when there was none for `timeout_s`."""
    try:
        return await subscription.fetch(batch, timeout=timeout_s)
    except (TimeoutError, NatsTimeout):
        return []


async def unsubscribe(subscription: JetStreamContext.PullSubscription) -> None:
    """Let go before the connection drains: a drain waits for messages that nobody will fetch."""
    try:
        await subscription.unsubscribe()
    except NatsError as error:  # the connection is gone, and the subscription with it
        _LOG.debug("unsubscribe_not_heard", extra={"error": repr(error)})


class PatientSubscription:
    """A pull subscription whose failed fetches take their time.

    FastStream fetches again at once after an error. Where the error comes at once as well (the durable was
    deleted, JetStream still starts) that is a busy loop, and on a closed connection one that never lets the
    event loop run.
    """

    def __init__(self, subscription: JetStreamContext.PullSubscription) -> None:
        self._subscription = subscription

    async def fetch(self, batch: int = 1, timeout: float | None = 5) -> list[Msg]:
        """Like the original."""
        started = time.monotonic()
        try:
            return await self._subscription.fetch(batch=batch, timeout=timeout)
        except (NatsError, TimeoutError):
            if time.monotonic() - started < _PAUSE_S:
                await asyncio.sleep(_PAUSE_S)
            raise

    async def unsubscribe(self) -> None:
        """Like the original."""
        await self._subscription.unsubscribe()
