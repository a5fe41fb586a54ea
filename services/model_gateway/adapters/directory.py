"""Models and engines from the registry: polled, and asked at once when an event says that something moved.

While the registry is unavailable the last view stays in force: engines outlive its restart.
"""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from google.protobuf.message import Message

from event_bus import Delivery
from grpc_edge import Peer
from model_gateway.domain.routing import Promotion, RoutingView
from model_gateway.wire import directory as wire
from service_kit.loops import pause
from upcycle.api.registry.v1 import events_pb2
from upcycle.api.registry.v1 import service_pb2 as pb
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.errors import Unavailable
from upcycle.moments import moment_of
from upcycle.rpc import peer_errors

log = logging.getLogger(__name__)

IDEMPOTENT = ("ListModels", "ListEngines", "GetVersion")
_CALL_S = 2.0
_DIGEST_S = 1.0
_KEPT_DIGESTS = 1024


class RegistryDirectory:
    """Models and engines, kept fresh in the background."""

    def __init__(self, peer: Peer, *, poll_s: float, on_promotion: Callable[[Promotion], None]) -> None:
        self._stub = RegistryServiceStub(peer.channel)
        self._poll_s = poll_s
        self._on_promotion = on_promotion
        self._view = RoutingView()
        self._changed = asyncio.Event()
        self._look = asyncio.Event()
        self._looking = asyncio.Lock()
        self._looked_at = -math.inf
        self._digests: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._trouble: str | None = "the registry has not answered yet"

    @property
    def view(self) -> RoutingView:
        """What is known now; no I/O."""
        return self._view

    def ready(self) -> str | None:
        """Ready once the registry has answered; when it is unavailable later, the gateway stays ready."""
        return self._trouble if not self._view.models and not self._view.engines else None

    async def changed(self, timeout_s: float) -> None:
        """Return when the view has changed, or after the timeout."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)

    async def refresh(self, timeout_s: float) -> None:
        """Ask the registry at once; while it does not answer the old view stays."""
        try:
            with peer_errors("look engines up", ()):
                models = await self._stub.ListModels(pb.ListModelsRequest(), timeout=timeout_s)
                engines = await self._stub.ListEngines(pb.ListEnginesRequest(), timeout=timeout_s)
        except Unavailable as error:
            self._report(str(error))
            return
        self._trouble = None
        promoted = wire.promoted_since(self._view, models)
        self._take(wire.view_from_wire(models, engines))
        for model, version, promoted_at in promoted:  # whose fact is late, or was lost
            self._on_promotion(Promotion(model, version, await self.digest(model, version), promoted_at))

    async def refresh_at_most_every(self, seconds: float, *, timeout_s: float) -> None:
        """`refresh`, unless it was done so recently: many requests may wait for one answer."""
        async with self._looking:
            if time.monotonic() - self._looked_at >= seconds:
                await self.refresh(timeout_s)
                self._looked_at = time.monotonic()

    async def digest(self, model: str, version: int) -> str:
        """Digest of a version; empty when the registry does not answer in time."""
        known = self._digests.get((model, version))
        if known is not None:
            return known
        request = pb.GetVersionRequest(model=model, version=version)
        try:
            with peer_errors("read version", ()):
                found = await self._stub.GetVersion(request, timeout=_DIGEST_S)
        except Unavailable as error:
            self._report(str(error))
            return ""
        self._keep(model, version, found.version.digest)
        return found.version.digest

    async def on_promoted(self, event: events_pb2.CheckpointPromoted, delivery: Delivery[Any]) -> None:
        """Head moved by a promotion, which is noted with its time."""
        await self.on_head_moved(event, delivery)
        promoted_at = moment_of(event.promoted_at)
        self._on_promotion(Promotion(event.model, event.version, event.digest, promoted_at))

    async def on_head_moved(
        self, event: events_pb2.CheckpointPromoted | events_pb2.CheckpointRolledBack, _: Delivery[Any]
    ) -> None:
        """A new head is known at once, and the registry is asked."""
        self._keep(event.model, event.version, event.digest)
        self._take(wire.with_head(self._view, event.model, event.version, event.checkpoint_id))
        self._look.set()

    async def on_canary_release(self, event: events_pb2.CanaryReleaseChanged, _: Delivery[Any]) -> None:
        """Applied at once, and the registry is asked: facts of two changes may arrive in any order."""
        self._take(wire.with_release(self._view, event.release))
        self._look.set()

    async def on_engine(self, _: Message, __: Delivery[Any]) -> None:
        """Ask the registry now rather than at the next poll."""
        self._look.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Ask at intervals, and at once after an event, until stopped."""
        while not stop.is_set():
            await self.refresh(_CALL_S)
            await pause(stop, self._poll_s, self._look)

    def _take(self, view: RoutingView) -> None:
        for engine in view.engines:
            if engine.digest:
                self._keep(engine.model, engine.version, engine.digest)
        if view != self._view:
            self._view = view
            self._changed.set()
            self._changed = asyncio.Event()

    def _keep(self, model: str, version: int, digest: str) -> None:
        """The newest are kept; an older one is asked for again."""
        self._digests[model, version] = digest
        self._digests.move_to_end((model, version))
        while len(self._digests) > _KEPT_DIGESTS:
            self._digests.popitem(last=False)

    def _report(self, trouble: str) -> None:
        if trouble != self._trouble:
            log.warning("registry_away", extra={"why": trouble})
        self._trouble = trouble
