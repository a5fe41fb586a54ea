"""Bus edge: what makes the keeper look."""

from collections.abc import Callable

from google.protobuf.message import Message

from episodes import Channel
from event_bus import Delivery
from policy_engine import wire
from policy_engine.usecases.pins import PinRequests
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted, CheckpointRolledBack
from upcycle.api.taskset.v1.events_pb2 import RunFinished, RunSubmitted
from upcycle.api.training.v1.events_pb2 import PolicyPublished

RUN_EVENTS: tuple[type[Message], ...] = (RunSubmitted, RunFinished)


def moving_events(channel: Channel) -> tuple[type[Message], ...]:
    """Facts after which the channel may want another version."""
    if channel is Channel.LATEST:
        return (PolicyPublished,)
    return (CheckpointPromoted, CheckpointRolledBack)


class KeeperHandlers:
    """Wakes the keeper; what the version is, it asks for itself."""

    def __init__(self, look: Callable[[], None], pins: PinRequests, announced: Callable[[int], None]) -> None:
        """`announced`: told the version of each fact that moves the channel, while its trace is current."""
        self._look = look
        self._pins = pins
        self._announced = announced

    async def on_moved(self, delivery: Delivery[Message]) -> None:
        """The channel moved."""
        message = delivery.message
        if isinstance(message, PolicyPublished | CheckpointPromoted | CheckpointRolledBack):
            self._announced(message.version)
        self._look()

    async def on_run(self, delivery: Delivery[Message]) -> None:
        """A run began or ended; evaluation runs may pin a version."""
        message = delivery.message
        if isinstance(message, RunSubmitted):
            version = wire.pinned_by(message)
            if version is None:
                return
            self._pins.submitted(message.run_id, version)
        elif isinstance(message, RunFinished):
            self._pins.finished(message.run_id)
        self._look()
