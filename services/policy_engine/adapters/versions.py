"""Which version a channel wants. The registry answers; a fact that is newer than its answer comes first."""

import logging
from typing import TYPE_CHECKING

from episodes import Channel
from identities.objects import PolicyFolder
from policy_engine import wire
from policy_engine.domain import EngineTarget, FailureKind, PinRequests, VersionRefused
from upcycle.api.registry.v1 import registry_pb2, service_pb2
from upcycle.errors import Unavailable
from upcycle.rpc import RemoteNotFound, RemoteRefused, peer_errors

if TYPE_CHECKING:
    # The type of an async stub exists for type checkers only.
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub

IDEMPOTENT = ("GetModel", "GetVersion", "RenewEngineLease")
log = logging.getLogger(__name__)


class ChannelVersions:
    """Answers for one model and channel.

    The newest published version that was ever named is remembered: `policy.published` may be handled here
    before the registry has recorded it, and engines follow the trainer also while the registry is down. One
    that was refused gives way to what the registry answers: a false fact may name a version that is nowhere.
    """

    def __init__(
        self, model: str, channel: Channel, registry: "RegistryServiceAsyncStub", pins: PinRequests
    ) -> None:
        self._model = model
        self._channel = channel
        self._registry = registry
        self._pins = pins
        self._newest: EngineTarget | None = None
        self._is_refused = False
        """Whether the newest was."""

    def refused_target(self, target: EngineTarget) -> None:
        """The version could not be served."""
        if self._newest is not None and target.digest == self._newest.digest:
            self._is_refused = True

    def note(self, target: EngineTarget) -> EngineTarget:
        """Take note of a published version; the newest so far."""
        if self._newest is None or self._is_refused or target.version > self._newest.version:
            self._newest, self._is_refused = target, False
        return self._newest

    async def current(self) -> list[EngineTarget]:
        """What the channel wants now, best first; the later ones are what to fall back to at start.

        Raises Unavailable while the registry does not answer or does not have the model.
        """
        try:
            with peer_errors(f"look up {self._model}", (RemoteNotFound,)):
                reply = await self._registry.GetModel(service_pb2.GetModelRequest(model=self._model))
        except RemoteNotFound as error:
            raise Unavailable(f"model {self._model!r} to be imported into the registry") from error
        except Unavailable as error:
            if self._channel is Channel.LATEST and self._newest is not None:
                return [self._newest]
            raise Unavailable(f"the registry: {error}") from error
        found = [
            *await self._ahead_of_head(reply.model),
            wire.target_of_checkpoint(reply.head, reply.model.promoted_at),
            wire.target_of_checkpoint(reply.base),
        ]
        by_digest: dict[str, EngineTarget] = {}
        for target in found:
            by_digest.setdefault(target.digest, target)
        return list(by_digest.values())

    async def of_pin(self, policy: PolicyFolder) -> EngineTarget:
        """A version that a run pins or the registry has held. Raises VersionRefused for one that was
        removed."""
        name = f"{policy.model}@v{policy.version}"
        request = service_pb2.GetVersionRequest(model=policy.model, version=policy.version)
        try:
            with peer_errors(f"the registry, to find {name}", (RemoteNotFound, RemoteRefused)):
                reply = await self._registry.GetVersion(request)
        except RemoteNotFound as error:
            raise Unavailable(f"{name} to be published") from error
        except RemoteRefused as error:
            raise VersionRefused(FailureKind.VERSION_REMOVED, str(error), may_pass_later=False) from error
        return wire.target_of_version(reply.version)

    async def _ahead_of_head(self, model: registry_pb2.Model) -> list[EngineTarget]:
        """What the channel wants before head; of pinned versions the one of the longest waiting run."""
        if self._channel is Channel.LATEST:
            return [self.note(wire.target_of_version(model.latest))]
        if self._channel is Channel.CANDIDATE:
            for version in self._pins.versions():
                try:
                    return [await self.of_pin(PolicyFolder(self._model, version))]
                except VersionRefused as error:
                    log.warning("pin_refused", extra={"version": version, "why": str(error)})
        return []
