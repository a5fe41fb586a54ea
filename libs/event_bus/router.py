"""The router on which a service declares its handlers.

    router = EventRouter()

    @router.subscriber(REWARD_GRADER, slots=8)
    async def on_trajectory_recorded(event: TrajectoryRecorded, delivery: CurrentDelivery) -> None: ...

Where a durable reads several types, each has its function, chosen by FastStream's `filter`:

    sub = router.subscriber(CHECKPOINT_REGISTRY)

    @sub(filter=Carries(RunFinished))
    async def on_run_finished(event: RunFinished) -> None: ...

Projections and ephemeral readers need stream order. They are declared here too, and read by nats-py.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from faststream.nats import NatsRouter
from faststream.nats.broker.registrator import NatsRegistrator
from google.protobuf.message import Message

from event_bus.batches import BatchHandler
from event_bus.delivery import Delivery
from event_bus.faststream_ext.subscriber import DurableSubscriber
from event_bus.topology import UPCYCLE, ConsumerSpec, Topology

EphemeralHandler = Callable[[Delivery[Any]], Awaitable[None]]
Start = Literal["new"] | int


@dataclass(frozen=True, slots=True)
class Projection:
    """A declared projection."""

    spec: ConsumerSpec
    handler: BatchHandler
    batch_size: int


@dataclass(frozen=True, slots=True)
class Ephemeral:
    """A declared ephemeral reader."""

    events: Sequence[type[Message]]
    handler: EphemeralHandler
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

    def projection(
        self, spec: ConsumerSpec, *, batch_size: int = 100
    ) -> Callable[[BatchHandler], BatchHandler]:
        """Decorates what folds the messages of a durable in stream order, up to `batch_size` at a time.

        An exception nacks the whole batch, with a delay; nothing newer is read before it. After
        `PoisonMessage` the handler gets the messages one by one; the one that raises it is a dead letter.
        """

        def declared(handler: BatchHandler) -> BatchHandler:
            self.projections.append(Projection(spec, handler, batch_size))
            return handler

        return declared

    def ephemeral(
        self, *events: type[Message], model: str | None = None, start: Start = "new"
    ) -> Callable[[EphemeralHandler], EphemeralHandler]:
        """Decorates what gets each fact of these types in stream order, in this process only.

        `start`: "new" begins with what is stored after the bus started, a number with the first fact after
        that sequence. Nothing is missed across reconnects; a restart begins again. A delivery that keeps
        failing is skipped after a few attempts, with an error in the log.
        """

        def declared(handler: EphemeralHandler) -> EphemeralHandler:
            self.ephemerals.append(Ephemeral(events, handler, model, start))
            return handler

        return declared
