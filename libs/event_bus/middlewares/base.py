"""What the middlewares of the bus have in common."""

from typing import Any, Final

from faststream import BaseMiddleware, ContextRepo
from nats.aio.msg import Msg

from event_bus.deps import ConsumerDeps
from event_bus.topology import ConsumerSpec

FAILURES: Final = "failures"
"""Key in the context of how often earlier deliveries of the message failed."""


class EventMiddleware(BaseMiddleware[Any, Msg]):
    """One per message; knows the durable that the message came from."""

    def __init__(self, msg: Msg, /, *, context: ContextRepo, deps: ConsumerDeps) -> None:
        super().__init__(msg, context=context)
        self.deps = deps
        # FastStream keeps the subscriber under this name; ours is a DurableSubscriber.
        self.spec: ConsumerSpec = context.get_local("handler_").spec
