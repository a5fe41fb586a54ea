"""FastStream subscribers of one durable, and of the durables of a queue: one for each model that is followed.

FastStream's own pull subscriber fetches more than it works on, fetches again without a pause after an error
(a busy loop while NATS refuses each fetch), and leaves a message that arrives during a stop unanswered until
its ack wait is over. Its way to read more at run time is another subscriber. Here the handler is declared
once, for all models; only the durables that it reads come and go.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable
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
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError

from event_bus.deps import ConsumerDeps
from event_bus.errors import BusError, MalformedEvent, NewerEvent, PoisonMessage
from event_bus.faststream_ext.filters import Carries
from event_bus.faststream_ext.held import HeldCommands, Needs, hand_back
from event_bus.incoming import Decoder, nack
from event_bus.middlewares.decoding import with_delivery
from event_bus.pulls import fetched, fetched_now, unsubscribe
from event_bus.topology import ConsumerSpec, Topology

_LOG = logging.getLogger(__name__)
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
_PAUSE_S: Final = 0.25
_UNSUBSCRIBED_S: Final = 2.0
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
        """Take turns with the other durables until this one is not wanted any more.

        Where messages wait, a slot goes to the durable that waits longest, and is in hand before a message is
        asked for: so those that have work take turns, however long their queues are, and a process without a
        slot keeps nothing that another one could begin.
        """
        subscription = None
        self._readers.add(durable)
        has_more = False
        try:
            while self.running and durable in self._wanted:
                if self._is_full(durable):
                    await asyncio.sleep(_PAUSE_S)
                    continue
                try:
                    if subscription is None:
                        subscription = await self.jetstream.pull_subscribe_bind(
                            durable, stream=self.spec.stream
                        )
                    has_more = await (self._begin_next if has_more else self._await_next)(subscription)
                    self.missing.discard(durable)
                except NatsError as error:
                    await self._not_fetched(durable, error)
        finally:
            self._readers.discard(durable)
            if subscription is not None:
                await unsubscribe(subscription)

    async def _begin_next(self, subscription: JetStreamContext.PullSubscription) -> bool:
        """With a slot in hand, begin the next message. Returns False where none waits."""
        raws: list[Msg] = []
        await self._slots.acquire()
        try:
            if self.running:  # a stop freed the slot: what is fetched now would stay unanswered
                raws = await fetched_now(subscription)
        finally:
            if not raws:
                self._slots.release()
        for raw in raws:
            self._begin(raw)
        return bool(raws)

    async def _await_next(self, subscription: JetStreamContext.PullSubscription) -> bool:
        """Wait for a message while a slot is free, without keeping one for it. Returns whether one came."""
        async with self._slots:
            pass
        if not self.running:
            return False
        deps = self._deps
        raws = await fetched(subscription, 1, deps.timings.pull_s)
        for raw in raws:
            if self._slots.locked():  # the last one went to another durable meanwhile
                await hand_back(raw, deps.notes)
            else:
                await self._slots.acquire()
                self._begin(raw)
        return bool(raws)

    @property
    def _deps(self) -> ConsumerDeps:
        deps: ConsumerDeps = self._outer_config.context.get(DEPS)
        return deps

    def _is_full(self, durable: str) -> bool:
        return False

    def _begin(self, raw: Msg) -> None:
        where = raw.metadata
        self._deps.in_flight.start(self._process(raw), f"{where.consumer}/{where.sequence.stream}")

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

    def __init__(
        self,
        spec: ConsumerSpec,
        topology: Topology,
        broker_config: NatsBrokerConfig,
        *,
        slots: int,
        needs: Needs | None,
    ) -> None:
        super().__init__(spec, topology, broker_config, slots=slots)
        self._needs = needs
        self._held = HeldCommands(spec, needs) if needs is not None else None
        self._events: dict[int, Message] = {}

    async def _create_subscription(self) -> None:
        """Nothing is read before `follow`."""
        if self._held is not None:
            self.add_task(self._held.run)

    def follow(self, models: Collection[str]) -> None:
        """Take commands of these models only. What was taken of another one goes on to its end."""
        if self.running:
            self._read_from({self.spec.of_model(model).durable for model in models})

    async def stop(self) -> None:
        """What is kept without a slot goes back at once, after the requests of this process are taken back:
        one of them would get it."""
        readers = [task for task in self.tasks if not task.done()]
        await super().stop()
        if readers:
            await asyncio.wait(readers, timeout=_UNSUBSCRIBED_S)
        if self._held is not None:
            self._held.close()

    def _is_full(self, durable: str) -> bool:
        return self._held is not None and self._held.is_full(durable)

    async def _process(self, raw: Msg) -> None:
        """What cannot be begun gives its slot away, and goes back once some process can begin it."""
        try:
            need = await self._unmet(raw)
            if need is None:
                await self.consume(raw)
                await nack(raw, self.spec.durable)
        finally:
            self._events.pop(id(raw), None)
            self._slots.release()
        if need is not None and self._held is not None:
            await self._held.keep(raw, need, self._deps.notes)

    async def _unmet(self, raw: Msg) -> Hashable | None:
        """What the command lacks; None also where its handling says what is wrong with it."""
        if self._needs is None:
            return None
        try:
            event = self._decoder_of_events.message(raw.subject, raw.data, raw.headers or {})
            need = await self._needs.unmet(event)
        except (MalformedEvent, NewerEvent, PoisonMessage):
            return None
        if need is None:
            self._events[id(raw)] = event
            if self._held is not None:
                self._held.forget(raw)  # an earlier delivery may be kept: this one is begun
        return need

    async def _decoded(self, message: StreamMessage[Msg]) -> Message:
        known = self._events.pop(id(message.raw_message), None)
        return known if known is not None else await super()._decoded(message)
