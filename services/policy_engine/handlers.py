"""Bus edge: what makes the supervisor look."""

from collections.abc import Callable

from google.protobuf.message import Message

from episodes import Channel
from event_bus import Delivery
from policy_engine import wire
from policy_engine.adapters.versions import ChannelVersions
from policy_engine.domain import PinRequests
from policy_engine.telemetry import SupervisorTelemetry
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted, CheckpointRolledBack
from upcycle.api.taskset.v1.events_pb2 import RunFinished, RunSubmitted
from upcycle.api.training.v1.events_pb2 import PolicyPublished

RUN_EVENTS: tuple[type[Message], ...] = (RunSubmitted, RunFinished)


def moving_events(channel: Channel) -> tuple[type[Message], ...]:
    """Facts after which the channel may want another version."""
    if channel is Channel.LATEST:
        return (PolicyPublished,)
    return (CheckpointPromoted, CheckpointRolledBack)


class SupervisorHandlers:
    """Wakes the supervisor, which asks for the version itself; a published one it takes from the fact."""

    def __init__(
        self,
        look_now: Callable[[], None],
        pins: PinRequests,
        versions: ChannelVersions,
        telemetry: SupervisorTelemetry,
    ) -> None:
        self._look_now = look_now
        self._pins = pins
        self._versions = versions
        self._telemetry = telemetry

    async def on_moved(self, delivery: Delivery[Message]) -> None:
        """The channel moved."""
        message = delivery.message
        if isinstance(message, PolicyPublished | CheckpointPromoted | CheckpointRolledBack):
            self._telemetry.announced(message.version)
        if isinstance(message, PolicyPublished):
            self._versions.published(wire.target_of_published(message))
        self._look_now()

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
        self._look_now()
