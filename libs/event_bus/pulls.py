"""Pull subscriptions of nats-py."""

import logging
from typing import Final

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import StatusCode
from nats.js.errors import APIError

_LOG = logging.getLogger(__name__)
_ONE_NOW: Final = b'{"batch": 1, "no_wait": true}'
_ANSWER_S: Final = 3.0


async def fetched(subscription: JetStreamContext.PullSubscription, batch: int, timeout_s: float) -> list[Msg]:
    """Up to `batch` messages as soon as there is one; none when there was none for `timeout_s`."""
    try:
        return await subscription.fetch(batch, timeout=timeout_s)
    except (TimeoutError, NatsTimeout):
        return []


async def fetched_now(subscription: JetStreamContext.PullSubscription) -> list[Msg]:
    """One message if one waits; does not wait for one. nats-py has no such request for a single message.

    Raises NatsError.
    """
    inbox = subscription._sub
    asked = False
    while True:
        if not asked and not inbox.pending_msgs:  # else the late answer to an earlier request is there
            await subscription._nc.publish(subscription._nms, _ONE_NOW, subscription._deliver)
            asked = True
        try:
            msg = await inbox.next_msg(timeout=_ANSWER_S)
        except (TimeoutError, NatsTimeout):
            return []
        status = JetStreamContext.is_status_msg(msg)
        if not status:
            return [msg]
        if asked and status == StatusCode.NO_MESSAGES:
            return []
        if not JetStreamContext._is_temporary_error(status) and not JetStreamContext._is_heartbeat(status):
            raise APIError.from_msg(msg)


async def unsubscribe(subscription: JetStreamContext.PullSubscription) -> None:
    """Let the server know that no message is wanted any more."""
    try:
        await subscription.unsubscribe()
    except NatsError as error:  # the connection is gone, and the subscription with it
        _LOG.debug("unsubscribe_not_sent", extra={"error": repr(error)})
