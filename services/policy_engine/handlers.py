"""Bus edge: the events that wake the supervisor."""

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from episodes import Channel
from event_bus import Delivery, EventRouter
from policy_engine import wire
from policy_engine.adapters.versions import ChannelVersions
from policy_engine.domain import PinRequests
from policy_engine.settings import PolicyEngineSettings
from policy_engine.telemetry import SupervisorTelemetry
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted, CheckpointRolledBack
from upcycle.api.taskset.v1.events_pb2 import RunFinished, RunSubmitted
from upcycle.api.training.v1.events_pb2 import PolicyPublished


def moving_events(channel: Channel) -> tuple[type[Message], ...]:
    """Facts after which the channel may want another version."""
    if channel is Channel.LATEST:
        return (PolicyPublished,)
    return (CheckpointPromoted, CheckpointRolledBack)


def supervisor_router(
    settings: PolicyEngineSettings,
    versions: ChannelVersions,
    pins: PinRequests,
    telemetry: SupervisorTelemetry,
    look_now: Callable[[], None],
) -> EventRouter:
    """Wakes the supervisor, which asks for the version itself; a published one it takes from the fact."""
    router = EventRouter()

    @router.ephemeral(*moving_events(settings.channel), model=settings.model)
    async def on_moved(delivery: Delivery[Any]) -> None:
        """The channel moved."""
        message = delivery.message
        telemetry.announced(message.version)
        if isinstance(message, PolicyPublished):
            versions.note(wire.target_of_published(message))
        look_now()

    @router.ephemeral(RunSubmitted, RunFinished, model=settings.model, start=0)
    async def on_run(delivery: Delivery[Any]) -> None:
        """A run began or ended; evaluation runs may pin a version."""
        run = delivery.message
        if isinstance(run, RunFinished):
            pins.unpin(run.run_id)
        elif (version := wire.pinned_by(run)) is not None:
            pins.pin(run.run_id, version)
        else:
            return
        look_now()

    return router
