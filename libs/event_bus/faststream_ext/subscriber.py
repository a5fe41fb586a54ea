"""FastStream subscribers of one durable, and of the durables of a queue: one for each model that is followed.

FastStream's own pull subscriber fetches more than it works on, fetches again without a pause after an error
(a busy loop while NATS refuses each fetch), and leaves a message that arrives during a stop unanswered until
its ack wait is over. Its way to read more at run time is another subscriber. Here the handler is declared
once, for all models; only the durables that it reads come and go.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final, TypeVar, overload

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
from nats.js.errors import NotFoundError

from event_bus.deps import ConsumerDeps
from event_bus.errors import BusError
from event_bus.faststream_ext.filters import Carries
from event_bus.incoming import Decoder, in_work, nack
from event_bus.middlewares.decoding import with_delivery
from event_bus.pulls import fetched, unsubscribe
from event_bus.topology import ConsumerSpec, Topology

_LOG = logging.getLogger(__name__)
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
_PAUSE_S: Final = 0.25
DEPS: Final = "bus_deps"
"""Key of the ConsumerDeps in the broker's context."""


class DurableSubscriber(PullStreamSubscriber):
    """Made by EventRouter.subscriber; decorates the functions that handle the durable's messages."""

    def __init__(
        self, spec: ConsumerSpec, topology: Topology, broker_config: NatsBrokerConfig, *, slots: int
    ) -> None:
        self.spec = spec
        self._slots = asyncio.Semaphore(slots)
        self._readers: set[str] = set()
        self._wanted: frozenset[str] = frozenset()
        self.missing: set[str] = set()
        """Durables that it should read and that do not exist."""
        self._decoder_of_events = Decoder.of(topology, spec)
        subjects = list(topology.filters_of(spec))
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

    @overload  # type: ignore[override]  # of fewer forms than FastStream's
    def __call__(self, func: Handler, **options: Any) -> Handler: ...

    @overload
    def __call__(self, func: None = None, **options: Any) -> Callable[[Handler], Handler]: ...

    def __call__(self, func: Any = None, **options: Any) -> Any:
        """Decorates a handler of (event) or (event, delivery). options: FastStream's, `filter` above all."""
        if func is None:
            return lambda declared: self(declared, **options)
        return super().__call__(with_delivery(func), **options)

    async def start(self) -> None:
        """Begin to pull. Raises BusError when a type that the durable reads has no handler."""
        if missing := self._unhandled():
            raise BusError(f"durable {self.spec.durable} reads {missing}, which no handler takes")
        await super().start()

    async def _create_subscription(self) -> None:
        self._read_from({self.spec.durable})

    def _read_from(self, wanted: Collection[str]) -> None:
        """Read exactly these durables from now on; other readers end after their pull in progress."""
        self._wanted = frozenset(wanted)
        self.missing &= self._wanted
        self.tasks = [task for task in self.tasks if not task.done()]
        for durable in sorted(self._wanted - self._readers):
            self._readers.add(durable)
            self.add_task(self._read, (durable,))

    async def _read(self, durable: str) -> None:
        """Ask for a message once a slot is free, begin it in the next free slot, and again.

        A slot goes to the durable that waits longest, and each waits with one message at most: so those that
        have work take turns, however long their queues are.
        """
        deps: ConsumerDeps = self._outer_config.context.get(DEPS)
        subscription = None
        self._readers.add(durable)
        try:
            while self.running and durable in self._wanted:
                async with self._slots:
                    pass
                if not self.running:  # a stop freed the slot: what is fetched now would stay unanswered
                    break
                try:
                    if subscription is None:
                        subscription = await self.jetstream.pull_subscribe_bind(
                            durable, stream=self.spec.stream
                        )
                    raws = await fetched(subscription, 1, deps.timings.pull_s)
                    self.missing.discard(durable)
                except NatsError as error:
                    await self._not_fetched(durable, error)
                    continue
                for raw in raws:
                    await self._take_slot(raw)
                    name = f"{durable}/{raw.metadata.sequence.stream}"
                    deps.in_flight.start(self._process(raw), name)
        finally:
            self._readers.discard(durable)
            if subscription is not None:
                await unsubscribe(subscription)

    async def _not_fetched(self, durable: str, error: NatsError) -> None:
        """Note whether it is the durable that is missing; then pause."""
        _LOG.debug("fetch_failed", extra={"consumer": durable, "error": repr(error)})
        try:
            await self.jetstream.consumer_info(self.spec.stream, durable)
        except NotFoundError:
            self.missing.add(durable)
        except NatsError:  # NATS itself does not answer, which its connection says
            pass
        await asyncio.sleep(_PAUSE_S)

    async def _take_slot(self, raw: Msg) -> None:
        """Wait for a slot, with heartbeats; a message that gets none goes back."""
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with in_work([raw], self.spec):
                await self._slots.acquire()
        except BaseException:
            await nack(raw, self.spec.durable)
            raise

    async def _process(self, raw: Msg) -> None:
        """Every message is answered, also one that arrives while the subscriber stops."""
        try:
            await self.consume(raw)
            await nack(raw, self.spec.durable)
        finally:
            self._slots.release()

    async def _decoded(self, message: StreamMessage[Msg]) -> Message:
        raw = message.raw_message
        return self._decoder_of_events.message(raw.subject, raw.data, raw.headers or {})

    def _unhandled(self) -> list[str]:
        filters: Iterable[Any] = [call.filter for call in self.calls]
        if any(not isinstance(one, Carries) for one in filters):
            return []
        handled = {one.message_type for one in filters}
        return sorted(event.__name__ for event in self.spec.events if event not in handled)


class QueueSubscriber(DurableSubscriber):
    """Made by EventRouter.queue; reads the durables of the models that it follows."""

    async def _create_subscription(self) -> None:
        """Nothing is read before `follow`."""

    def follow(self, models: Collection[str]) -> None:
        """Take commands of these models only. What was taken of another one goes on to its end."""
        if self.running:
            self._read_from({self.spec.of_model(model).durable for model in models})
