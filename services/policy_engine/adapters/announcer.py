"""Events on the bus, the lease in the registry."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from event_bus import BusError, EventBus
from identities import events
from identities.objects import PolicyFolder
from policy_engine import wire
from policy_engine.domain import LeaseFacts, Reloaded, ServedPolicy, VersionRefused
from upcycle.api.registry.v1 import service_pb2
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteRefused, peer_errors

if TYPE_CHECKING:
    # The type of an async stub exists for type checkers only.
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub

log = logging.getLogger(__name__)


class PlatformAnnouncer:
    """Publishes for one engine. An event that cannot be published is logged; the engine serves on."""

    def __init__(
        self,
        who: wire.EngineIdentity,
        bus: EventBus,
        registry: "RegistryServiceAsyncStub",
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._who = who
        self._bus = bus
        self._registry = registry
        self._now = now
        self._num_published = 0

    async def ready(self, serving: ServedPolicy) -> None:
        """Publish engine.ready."""
        await self._publish("ready", wire.ready_event(self._who, serving, self._now()), self._next())

    async def reloaded(self, done: Reloaded) -> None:
        """Publish engine.reloaded."""
        await self._publish("reloaded", wire.reloaded_event(self._who, done, self._now()), self._next())

    async def reload_failed(self, serving: ServedPolicy | None, version: int, why: VersionRefused) -> None:
        """Publish engine.reload_failed, once for each kind of failure of a version."""
        event = wire.failed_event(self._who, serving, version, why, self._now())
        await self._publish("reload_failed", event, f"v{version}/{why.kind}")

    async def renew_lease(self, facts: LeaseFacts, ttl_s: float) -> list[PolicyFolder]:
        """Tell the registry that the engine is alive; what it has this engine hold. Raises Unavailable."""
        request = service_pb2.RenewEngineLeaseRequest(lease=wire.lease_to_wire(self._who, facts), ttl_s=ttl_s)
        try:
            with peer_errors("renew the engine's lease", (RemoteRefused,)):
                reply = await self._registry.RenewEngineLease(request)
        except RemoteRefused as error:
            if error.reason != "UNKNOWN_FIELD":
                raise Unavailable(str(error)) from None
            wire.as_of_0_3(request.lease)  # a registry that is still of that version
            with peer_errors("renew the engine's lease", ()):
                reply = await self._registry.RenewEngineLease(request)
        return [PolicyFolder(hold.model, hold.version) for hold in reply.holds]

    def _next(self) -> str:
        self._num_published += 1
        return str(self._num_published)

    async def _publish(self, verb: str, event: Message, what: str) -> None:
        event_id = events.engine_changed(verb, self._who.engine_id, what)
        try:
            await self._bus.publish(event, model=self._who.model, event_id=event_id)
        except (BusError, Unavailable) as error:
            log.error("event_lost", extra={"event_id": event_id, "why": str(error)})
