"""Pull subscriptions of nats-py."""

import logging

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext

_LOG = logging.getLogger(__name__)


async def fetched(subscription: JetStreamContext.PullSubscription, batch: int, timeout_s: float) -> list[Msg]:
    """Up to `batch` messages as soon as there is one; none when there was none for `timeout_s`."""
    try:
        return await subscription.fetch(batch, timeout=timeout_s)
    except (TimeoutError, NatsTimeout):
        return []


async def unsubscribe(subscription: JetStreamContext.PullSubscription) -> None:
    """Let the server know that no message is wanted any more."""
    try:
        await subscription.unsubscribe()
    except NatsError as error:  # the connection is gone, and the subscription with it
        _LOG.debug("unsubscribe_not_sent", extra={"error": repr(error)})
