"""Bus edge: the events that wake the supervisor."""

import logging
from collections.abc import Callable
from typing import Any

from episodes import Channel
from event_bus import Delivery, EventRouter
from policy_engine import wire
from policy_engine.adapters.versions import ChannelVersions
from policy_engine.domain import PinRequests
from policy_engine.settings import PolicyEngineSettings
from policy_engine.telemetry import SupervisorTelemetry
from policy_files import FalseAnnouncement
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted, CheckpointRolledBack
from upcycle.api.taskset.v1.events_pb2 import RunFinished, RunSubmitted
from upcycle.api.training.v1.events_pb2 import PolicyPublished

log = logging.getLogger(__name__)


def supervisor_router(
    settings: PolicyEngineSettings,
    versions: ChannelVersions,
    pins: PinRequests,
    telemetry: SupervisorTelemetry,
    look_now: Callable[[], None],
) -> EventRouter:
    """Wakes the supervisor, which asks for the version itself; a published one it takes from the fact."""
    router = EventRouter()
    channel = router.ephemeral(model=settings.model)
    _follow_pins(router, settings.model, pins, look_now)

    if settings.channel is Channel.LATEST:

        @channel(PolicyPublished)
        async def on_policy_published(event: PolicyPublished, _: Delivery[Any]) -> None:
            try:
                target = wire.target_of_published(event, settings.model)
            except FalseAnnouncement as error:  # the registry makes it a dead letter
                log.warning("false_announcement", extra={"error": str(error)})
                return
            telemetry.announced(event.version)
            versions.note(target)
            look_now()

    else:

        async def on_head_moved(event: CheckpointPromoted | CheckpointRolledBack, _: Delivery[Any]) -> None:
            telemetry.announced(event.version)
            look_now()

        channel(CheckpointPromoted)(on_head_moved)
        channel(CheckpointRolledBack)(on_head_moved)

    return router


def _follow_pins(router: EventRouter, model: str, pins: PinRequests, look_now: Callable[[], None]) -> None:
    """Read from the beginning: a run that was submitted before this start may still need its version."""
    runs = router.ephemeral(model=model, start=0)

    @runs(RunSubmitted)
    async def on_run_submitted(event: RunSubmitted, _: Delivery[Any]) -> None:
        """An evaluation may pin a version, or two."""
        if versions := wire.pinned_by(event.spec):
            pins.pin(event.run_id, *versions)
            look_now()

    @runs(RunFinished)
    async def on_run_finished(event: RunFinished, _: Delivery[Any]) -> None:
        """Its pin is not needed any more."""
        pins.unpin(event.run_id)
        look_now()
