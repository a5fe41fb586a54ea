"""Which version a channel wants: the bus for what was published, the registry for heads and checkpoints."""

from typing import TYPE_CHECKING

from blob_store import BlobError, BlobStore
from episodes import Channel
from event_bus import BusError, EventBus
from policy_engine import wire
from policy_engine.domain import ModelUnknown, PlatformUnavailable, Target
from policy_engine.usecases.pins import PinRequests
from policy_files import InvalidManifest, UnknownPolicy, load
from upcycle.api.registry.v1 import service_pb2
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted
from upcycle.api.training.v1.events_pb2 import PolicyPublished
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteError, RemoteNotFound, remote_errors

if TYPE_CHECKING:
    # The type of an async stub exists for type checkers only.
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub

IDEMPOTENT = ("GetModel", "GetCheckpoint", "RenewEngineLease")


class ChannelVersions:
    """Answers for one model and channel by asking; nothing is remembered, so nothing can be stale."""

    def __init__(
        self,
        model: str,
        channel: Channel,
        registry: "RegistryServiceAsyncStub",
        bus: EventBus,
        store: BlobStore,
        pins: PinRequests,
    ) -> None:
        self._model = model
        self._channel = channel
        self._registry = registry
        self._bus = bus
        self._store = store
        self._pins = pins

    async def current(self) -> list[Target]:
        """See ports.Versions."""
        head, base = await self._of_registry()
        found = [head, base]
        if self._channel is Channel.LATEST:
            published = await self._last_published()
            if published is not None and published.version > head.version:
                found.insert(0, published)
        elif self._channel is Channel.CANDIDATE and (needed := self._pins.versions()):
            found.insert(0, await self.find(needed[0]))
        return list({target.digest: target for target in reversed(found)}.values())[::-1]

    async def find(self, version: int) -> Target:
        """See ports.Versions."""
        request = service_pb2.GetCheckpointRequest(model=self._model, version=version)
        try:
            with remote_errors(f"look up {self._model} v{version}"):
                reply = await self._registry.GetCheckpoint(request)
            return wire.target_of_checkpoint(reply.checkpoint)
        except RemoteNotFound:
            return await self._find_published(version)
        except (RemoteError, Unavailable) as error:
            raise PlatformUnavailable(f"the registry, to find v{version}: {error}") from error

    async def _find_published(self, version: int) -> Target:
        """Not every published version is a checkpoint."""
        try:
            return wire.target_of_manifest(await load(self._store, self._model, version))
        except UnknownPolicy as error:
            raise PlatformUnavailable(f"v{version} to be published") from error
        except (BlobError, Unavailable, InvalidManifest) as error:
            raise PlatformUnavailable(f"the manifest of v{version}: {error}") from error

    async def _of_registry(self) -> tuple[Target, Target]:
        try:
            with remote_errors(f"get model {self._model}"):
                reply = await self._registry.GetModel(service_pb2.GetModelRequest(model=self._model))
        except RemoteNotFound as error:
            raise ModelUnknown(f"model {self._model!r} to be imported into the registry") from error
        except (RemoteError, Unavailable) as error:
            raise PlatformUnavailable(f"the registry: {error}") from error
        head = wire.target_of_checkpoint(reply.head)
        if self._channel is Channel.HEAD:
            head = await self._with_promotion_time(head)
        return head, wire.target_of_checkpoint(reply.base)

    async def _with_promotion_time(self, head: Target) -> Target:
        try:
            promoted = await self._bus.last(CheckpointPromoted, model=self._model)
        except BusError as error:
            raise PlatformUnavailable(f"the bus: {error}") from error
        if promoted is None or promoted.message.version != head.version:
            return head
        at = promoted.message.promoted_at.ToDatetime(promoted.published_at.tzinfo)
        return Target(head.version, head.digest, head.manifest, at)

    async def _last_published(self) -> Target | None:
        try:
            delivery = await self._bus.last(PolicyPublished, model=self._model)
        except BusError as error:
            raise PlatformUnavailable(f"the bus: {error}") from error
        return None if delivery is None else wire.target_of_published(delivery.message)
