"""The router on which a service declares its handlers.

    router = EventRouter()

    @router.subscriber(REWARD_GRADER, slots=8)
    async def on_trajectory_recorded(event: TrajectoryRecorded, delivery: CurrentDelivery) -> None: ...

Where a durable reads several types, each has its function, chosen by FastStream's `filter`:

    sub = router.subscriber(CHECKPOINT_REGISTRY)

    @sub(filter=Carries(RunFinished))
    async def on_run_finished(event: RunFinished) -> None: ...
"""

from faststream.nats import NatsRouter
from faststream.nats.broker.registrator import NatsRegistrator

from event_bus.faststream_ext.subscriber import DurableSubscriber
from event_bus.topology import UPCYCLE, ConsumerSpec, Topology


class EventRouter(NatsRouter):
    """Subscribes functions to durables of the topology. Nothing connects before the bus starts."""

    def __init__(self, topology: Topology = UPCYCLE) -> None:
        super().__init__()
        self._topology = topology
        self.durables: list[ConsumerSpec] = []

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
