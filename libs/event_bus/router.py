"""The router on which a service declares its handlers.

    router = EventRouter()

    @router.subscriber(REWARD_GRADER, slots=8)
    async def on_trajectory_recorded(event: TrajectoryRecorded, delivery: CurrentDelivery) -> None: ...

Where a durable reads several types, each has its function, chosen by FastStream's `filter`:

    sub = router.subscriber(CHECKPOINT_REGISTRY)

    @sub(filter=Carries(RunFinished))
    async def on_run_finished(event: RunFinished) -> None: ...

Projections and ephemeral readers need stream order. They are declared here too, and read by nats-py; see
`EventHandlers` for their functions.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from faststream.nats import NatsRouter
from faststream.nats.broker.registrator import NatsRegistrator
from google.protobuf.message import Message

from event_bus.delivery import Delivery
from event_bus.errors import BusError, UnknownEvent
from event_bus.faststream_ext.held import Needs
from event_bus.faststream_ext.subscriber import DurableSubscriber, QueueSubscriber
from event_bus.topology import UPCYCLE, ConsumerSpec, Topology

E = TypeVar("E", bound=Message)
R = TypeVar("R")
Handler = Callable[[E, Delivery[Any]], R]
Fold = Callable[[Sequence[tuple[Delivery[Any], R]]], Awaitable[None]]
Start = Literal["new"] | int


class EventHandlers(Generic[R]):
    """Which typed function gets which event where FastStream does not dispatch; each returns an R.

    facts = router.ephemeral(model="incident")

    @facts(PolicyPublished)
    async def on_policy_published(event: PolicyPublished, delivery: Delivery[Any]) -> None: ...
    """

    def __init__(self) -> None:
        self._functions: dict[type[Message], Handler[Any, R]] = {}

    def __call__(self, event: type[E]) -> Callable[[Handler[E, R]], Handler[E, R]]:
        """Decorates the function that gets the events of one type. Raises UnknownEvent for a second one."""

        def declared(function: Handler[E, R]) -> Handler[E, R]:
            if event in self._functions:
                raise UnknownEvent(f"two functions handle {event.__name__}: leave one")
            self._functions[event] = function
            return function

        return declared

    @property
    def events(self) -> tuple[type[Message], ...]:
        """The types that have a function, in the order of the code."""
        return tuple(self._functions)

    def handle(self, delivery: Delivery[Any]) -> R:
        """What the function of the event returns."""
        return self._functions[type(delivery.message)](delivery.message, delivery)


@dataclass(frozen=True, slots=True)
class Projection:
    """A declared projection."""

    spec: ConsumerSpec
    handlers: EventHandlers[Any]
    fold: Fold[Any]
    batch_size: int
    is_ours: Callable[[], bool] | None

    async def handle(self, deliveries: Sequence[Delivery[Any]]) -> None:
        """One batch."""
        await self.fold([(delivery, self.handlers.handle(delivery)) for delivery in deliveries])


@dataclass(frozen=True, slots=True)
class Ephemeral:
    """A declared ephemeral reader."""

    handlers: EventHandlers[Awaitable[None]]
    model: str | None
    start: Start


class EventRouter(NatsRouter):
    """Subscribes functions to durables of the topology. Nothing connects before the bus starts."""

    def __init__(self, topology: Topology = UPCYCLE) -> None:
        super().__init__()
        self._topology = topology
        self.durables: list[ConsumerSpec] = []
        self.projections: list[Projection] = []
        self.ephemerals: list[Ephemeral] = []

    def subscriber(  # type: ignore[override]  # a durable of the topology has all that FastStream's 20 options say
        self, spec: ConsumerSpec, *, slots: int = 1
    ) -> DurableSubscriber:
        """Decorates what handles the messages of a durable, at most `slots` at once in this process.

        A return acknowledges the message. `Unavailable` has it redelivered after its `retry_after_s` and
        counts no failure. `PoisonMessage` makes it a dead letter. Any other exception, or taking longer than
        `spec.handler_timeout_s`, has it redelivered after a growing delay; after `spec.max_deliver` failures
        it is a dead letter.
        """
        subscriber = DurableSubscriber(spec, self._topology, self.config, slots=slots)  # type: ignore[arg-type]
        # FastStream's registrator makes its own classes only; this registers ours as it registers them.
        super(NatsRegistrator, self).subscriber(subscriber)
        self.durables.append(spec)
        return subscriber

    def queue(self, spec: ConsumerSpec, *, slots: int = 1, needs: Needs | None = None) -> QueueSubscriber:
        """Decorates what handles the commands of a queue, as `subscriber` does, of the models that the
        result's `follow` names: none before it is called. Models that have commands take turns for the slots.

        needs: what a command waits for, without a slot, before it is handled.
        """
        subscriber = QueueSubscriber(
            spec,
            self._topology,
            self.config,  # type: ignore[arg-type]
            slots=slots,
            needs=needs,
        )
        super(NatsRegistrator, self).subscriber(subscriber)
        return subscriber

    def projection(
        self,
        spec: ConsumerSpec,
        handlers: EventHandlers[R],
        *,
        batch_size: int = 100,
        is_ours: Callable[[], bool] | None = None,
    ) -> Callable[[Fold[R]], Fold[R]]:
        """Decorates what folds the messages of a durable in stream order, up to `batch_size` at a time: each
        with what `handlers` make of it. Raises BusError when a type that the durable reads has no function.

        An exception nacks the whole batch, with a delay; nothing newer is read before it. After
        `PoisonMessage` the messages are folded one by one; the one that raises it is a dead letter.

        is_ours: whether this process reads now. Of several processes that read at once each gets a part of
        the messages, in no order between them.
        """
        if missing := sorted(event.__name__ for event in spec.events if event not in handlers.events):
            raise BusError(f"durable {spec.durable} reads {missing}, which no handler takes")

        def declared(fold: Fold[R]) -> Fold[R]:
            self.projections.append(Projection(spec, handlers, fold, batch_size, is_ours))
            return fold

        return declared

    def ephemeral(self, *, model: str | None = None, start: Start = "new") -> EventHandlers[Awaitable[None]]:
        """Decorates, once per type, what gets each fact of that type in stream order, in this process only.

        `start`: "new" begins with what is stored after the bus started, a number with the first fact after
        that sequence. Nothing is missed across reconnects; a restart, or a stream that was made anew, begins
        again. A delivery that keeps failing is skipped after a few attempts, with an error in the log.
        """
        handlers = EventHandlers[Awaitable[None]]()
        self.ephemerals.append(Ephemeral(handlers, model, start))
        return handlers
