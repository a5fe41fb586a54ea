"""A FastStream subscriber of one durable with `slots` pull loops, each with one message at a time.

FastStream's own pull subscriber has one loop, fetches again without a pause after an error (a busy loop
while NATS refuses each fetch), and leaves a message that arrives during a stop unanswered until its ack
wait is over.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.nats import JStream, PullSub
from faststream.nats.configs import NatsBrokerConfig
from faststream.nats.subscriber.config import NatsSubscriberConfig, NatsSubscriberSpecificationConfig
from faststream.nats.subscriber.specification import NatsSubscriberSpecification
from faststream.nats.subscriber.usecases import PullStreamSubscriber
from google.protobuf.message import Message
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import ConsumerConfig

from event_bus.deps import ConsumerDeps
from event_bus.errors import BusError
from event_bus.faststream_ext.filters import Carries
from event_bus.incoming import Decoder, nack
from event_bus.pulls import fetched, unsubscribe
from event_bus.topology import ConsumerSpec, Topology

_LOG = logging.getLogger(__name__)
_PAUSE_S: Final = 0.25
DEPS: Final = "bus_deps"
"""Key of the ConsumerDeps in the broker's context."""


class DurableSubscriber(PullStreamSubscriber):
    """Made by EventRouter.subscriber; decorates the functions that handle the durable's messages."""

    def __init__(
        self, spec: ConsumerSpec, topology: Topology, broker_config: NatsBrokerConfig, *, slots: int
    ) -> None:
        self.spec = spec
        self._slots = slots
        self._decoder_of_events = Decoder.of(topology, spec)
        subjects = [subject for subject, _ in topology.bound_by(spec)]
        calls: CallsCollection[Msg] = CallsCollection()
        super().__init__(
            NatsSubscriberConfig(
                _outer_config=broker_config,
                subject="",
                sub_config=ConsumerConfig(durable_name=spec.durable, filter_subjects=subjects),
                _ack_policy=AckPolicy.NACK_ON_ERROR,
                no_reply=True,
            ),
            NatsSubscriberSpecification(
                broker_config,
                NatsSubscriberSpecificationConfig(
                    subject="", queue=None, filter_subjects=subjects, title_=spec.durable, description_=None
                ),
                calls,
            ),
            calls,
            queue="",
            pull_sub=PullSub(batch_size=1),
            stream=JStream(spec.stream, declare=False),
        )
        self.add_call(parser_=None, decoder_=self._decoded, dependencies_=())

    async def start(self) -> None:
        """Begin to pull. Raises BusError when a type that the durable reads has no handler."""
        if missing := self._unhandled():
            raise BusError(f"durable {self.spec.durable} reads {missing}, which no handler takes")
        await super().start()

    async def _create_subscription(self) -> None:
        for _ in range(self._slots):
            self.add_task(self._pull)

    async def _pull(self) -> None:
        """One slot: fetch a message, process it, fetch the next, until the subscriber stops."""
        deps: ConsumerDeps = self._outer_config.context.get(DEPS)
        subscription = None
        try:
            while self.running:
                try:
                    if subscription is None:
                        subscription = await self.jetstream.pull_subscribe_bind(
                            self.spec.durable, stream=self.spec.stream
                        )
                    raws = await fetched(subscription, 1, deps.timings.pull_s)
                except NatsError as error:
                    _LOG.debug("fetch_failed", extra={"consumer": self.spec.durable, "error": repr(error)})
                    await asyncio.sleep(_PAUSE_S)
                    continue
                for raw in raws:
                    await deps.in_flight.run(
                        self._process(raw), f"{self.spec.durable}/{raw.metadata.sequence.stream}"
                    )
        finally:
            if subscription is not None:
                await unsubscribe(subscription)

    async def _process(self, raw: Msg) -> None:
        """Every message is answered, also one that arrives while the subscriber stops."""
        await self.consume(raw)
        await nack(raw, self.spec.durable)

    async def _decoded(self, message: StreamMessage[Msg]) -> Message:
        raw = message.raw_message
        return self._decoder_of_events.message(raw.subject, raw.data, raw.headers or {})

    def _unhandled(self) -> list[str]:
        filters: Iterable[Any] = [call.filter for call in self.calls]
        if any(not isinstance(one, Carries) for one in filters):
            return []
        handled = {one.message_type for one in filters}
        return sorted(event.__name__ for event in self.spec.events if event not in handled)
