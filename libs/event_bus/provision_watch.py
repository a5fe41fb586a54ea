"""`upcycle-provision --watch`: keeps streams and durables, and the queues of all models, as they should be.

It is the only process that makes durables while the platform runs. It learns from the registry which models
there are, asked every `poll_s`: a poll misses nothing, also not what happened while it was down. Any number
of replicas may run, also of two versions: it makes what is missing, and changes no stream or durable of
facts.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from nats.js import JetStreamContext

from event_bus import metrics
from event_bus.errors import ProvisionRefused
from event_bus.model_queues import QueuesApplied, apply_queues, remove_model
from event_bus.provision import apply_topology, provisioning, sized
from event_bus.service_requests import ServiceRequests
from event_bus.settings import ProvisionSettings
from event_bus.topology import UPCYCLE
from grpc_edge import Peer
from service_kit.background import Worker
from service_kit.loops import first_of
from service_kit.main import run_main
from service_kit.service import Service
from upcycle.api.registry.v1.service_pb2 import ListModelsRequest
from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceStub
from upcycle.errors import Unavailable
from upcycle.rpc import peer_errors

if TYPE_CHECKING:  # only the stubs know the asynchronous classes
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub

log = logging.getLogger(__name__)
_LIST_TIMEOUT_S: Final = 10.0


class Models:
    """The registry's list of models."""

    def __init__(self, registry: Peer) -> None:
        self._stub: RegistryServiceAsyncStub = RegistryServiceStub(registry.channel)

    async def __call__(self) -> Collection[str]:
        """Slugs. Raises Unavailable."""
        with peer_errors("list models", ()):
            reply = await self._stub.ListModels(ListModelsRequest(), timeout=_LIST_TIMEOUT_S)
        return frozenset(model.model for model in reply.models)


class ProvisionLoop:
    """Applies everything at start, every `repair_s` and after an outage; queues when the list changed."""

    def __init__(self, settings: ProvisionSettings, models: Models) -> None:
        self._settings = settings
        self._models = models
        self._trouble: str | None = "nothing was applied yet"
        self._applied = QueuesApplied()
        self._outdated: list[str] = []

    def ready(self) -> str | None:
        """Why streams, durables or queues may not be as they should be."""
        return self._trouble

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped, at any point: what was begun is done again by the next process."""
        async with first_of(self._follow(), stop.wait()) as (following, _):
            if following.done():
                following.result()

    async def _follow(self) -> None:
        """What NATS or the registry cannot do now is named, and tried again after `poll_s`."""
        while True:
            try:
                async with provisioning(self._settings.bus) as jetstream:
                    await self._repair_and_follow(jetstream)
            except (Unavailable, ProvisionRefused) as error:
                self._say(str(error))
            await asyncio.sleep(self._settings.poll_s)

    async def _repair_and_follow(self, jetstream: JetStreamContext) -> None:
        """Over one connection: everything, then the list of models until the next repair is due; again."""
        due_s, now_s = 0.0, asyncio.get_running_loop().time
        while True:
            try:
                if now_s() >= due_s:
                    await self._repair(jetstream)
                    await self._apply(jetstream)
                    due_s = now_s() + self._settings.repair_s
                elif await self._models() != self._applied.models:
                    await self._apply(jetstream)
                self._say(None)
            except Unavailable as error:  # the registry's: an error of NATS ends the connection
                self._say(str(error))
            await asyncio.sleep(self._settings.poll_s)

    async def _repair(self, jetstream: JetStreamContext) -> None:
        """Make what is missing. What differs may be a newer version's, so it is left and named."""
        settings = self._settings
        wanted = sized(UPCYCLE, settings.bus.episodes_kept)
        done = await apply_topology(jetstream, wanted, settings.replicas, update=False)
        if done.created:
            log.warning("made_what_was_missing", extra={"names": done.created})
        if done.outdated != self._outdated:
            way_out = "run the upcycle-provision of the version that you want"
            log.warning("differs_from_this_version", extra={"names": done.outdated, "way_out": way_out})
        self._outdated = done.outdated

    async def _apply(self, jetstream: JetStreamContext) -> None:
        applied = await apply_queues(jetstream, self._models)
        metrics.MODELS.set(len(applied.models))
        metrics.ORPHANED.set(sum(applied.orphaned.values()))
        for model in applied.orphaned.keys() - self._applied.orphaned.keys():
            extra = {"model": model, "commands": applied.orphaned[model], "way_out": _WAY_OUT}
            log.warning("model_is_gone_and_its_queue_is_not_empty", extra=extra)
        if applied.done.created or applied.done.removed:
            counts = {"num_created": len(applied.done.created), "num_removed": len(applied.done.removed)}
            log.info("queues_applied", extra={"models": len(applied.models), **counts})
        self._applied = applied

    def _say(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self._trouble:
            log.warning("provision_waits", extra={"waiting_for": trouble})
        self._trouble = trouble


_WAY_OUT: Final = "import the model again, or drop its commands: upcycle-provision --remove-model MODEL"


def build_app(settings: ProvisionSettings) -> Service:
    """The whole process. Needs a running event loop; connects at start."""
    service = Service("provision", settings)
    registry = service.add(Peer("registry", settings.peers.registry, api_key=settings.access.sent))
    loop = ProvisionLoop(settings, Models(registry))
    service.add(Worker("provision", loop.run, ready=loop.ready))
    requests = ServiceRequests(settings.bus)
    service.add(Worker("requests", requests.run, ready=requests.ready))
    return service


async def remove(settings: ProvisionSettings, model: str) -> int:
    """Remove a model that is gone. Raises ProvisionRefused, Unavailable."""
    registry = Peer("registry", settings.peers.registry, api_key=settings.access.sent)
    try:
        models = await Models(registry)()
        async with provisioning(settings.bus) as jetstream:
            return await remove_model(jetstream, model, models)
    finally:
        await registry.stop()


def watch(argv: Sequence[str]) -> None:
    """Run until a signal. Raises SystemExit."""
    run_main("provision", ProvisionSettings, build_app, argv=argv)
