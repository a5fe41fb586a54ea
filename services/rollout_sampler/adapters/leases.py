"""Which engines are alive, by the leases in the registry: read at most once a second, and after a failure."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from engine_client import SERVING_STATES, pinned_name, state_from_wire
from episodes.identity import CHANNEL_NUMBERS
from rollout_sampler.domain import PolicyWanted
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1 import registry_pb2, service_pb2
from upcycle.errors import Unavailable
from upcycle.rpc import peer_errors

if TYPE_CHECKING:  # only the stubs know the asynchronous classes
    from upcycle.api.registry.v1.service_pb2_grpc import RegistryServiceAsyncStub

_LIST_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """One engine that can sample what is wanted, and the model name to ask it for."""

    engine_id: str
    base_url: str
    model_name: str
    lease: registry_pb2.EngineLease

    @property
    def rank(self) -> int:
        """Smaller is better."""
        return SERVING_STATES.index(state_from_wire(self.lease.state))


Leases = Sequence[registry_pb2.EngineLease]


class LeaseCache:
    """The leases of all engines, cached by model."""

    def __init__(self, registry: "RegistryServiceAsyncStub", *, max_age_s: float = 1.0) -> None:
        self._registry = registry
        self._max_age_s = max_age_s
        self._by_model: Mapping[str, Leases] | None = None
        self.addresses: frozenset[str] = frozenset()
        """Of all engines in the last list."""
        self._read_at = -math.inf
        self._reading: asyncio.Task[Mapping[str, Leases]] | None = None

    async def of_model(self, model: str) -> Leases:
        """Live leases of a model's engines. Raises Unavailable when the registry does not answer."""
        return (await self._leases()).get(model, ())

    async def served_models(self) -> frozenset[str]:
        """Models that an engine serves. Raises Unavailable when the registry does not answer."""
        found = await self._leases()
        return frozenset(model for model, leases in found.items() if any(_serves(one) for one in leases))

    async def serves(self, wanted: PolicyWanted) -> bool:
        """Whether an engine can sample what is wanted. Raises Unavailable where no list was ever read."""
        return bool(choices_among(await self.of_model(wanted.model), wanted))

    def forget(self) -> None:
        """Read again at the next call; the last list stays for as long as the registry is unavailable."""
        self._read_at = -math.inf

    async def _leases(self) -> Mapping[str, Leases]:
        loop = asyncio.get_running_loop()
        if self._by_model is not None and loop.time() - self._read_at < self._max_age_s:
            return self._by_model
        if self._reading is None or self._reading.done():
            self._reading = loop.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def _read(self) -> Mapping[str, Leases]:
        try:
            with peer_errors("list engines", ()):
                request = service_pb2.ListEnginesRequest()
                reply = await self._registry.ListEngines(request, timeout=_LIST_TIMEOUT_S)
        except Unavailable as error:
            if self._by_model is None:
                raise Unavailable("the registry, to find engines") from error
            # Engines go on without the registry: the last list is still the best one, and asking costs time.
        else:
            by_model: dict[str, list[registry_pb2.EngineLease]] = {}
            for lease in reply.engines:
                by_model.setdefault(lease.model, []).append(lease)
            self._by_model = by_model
            self.addresses = frozenset(lease.base_url for lease in reply.engines)
        self._read_at = asyncio.get_running_loop().time()
        return self._by_model


def choices_among(leases: Leases, wanted: PolicyWanted) -> list[EngineChoice]:
    """The engines among `leases` that can sample what is wanted."""
    found = []
    for lease in leases:
        name = _name_on(lease, wanted)
        if name is not None and _serves(lease) and lease.model == wanted.model:
            found.append(EngineChoice(lease.engine_id, lease.base_url, name, lease))
    return found or _of_head(leases, wanted)


def _of_head(leases: Leases, wanted: PolicyWanted) -> list[EngineChoice]:
    """Where no engine holds the pinned version beside another: those of head, while it is head. So the two
    versions of a pair play on two engines, candidate and head."""
    return [
        EngineChoice(lease.engine_id, lease.base_url, wanted.model, lease)
        for lease in leases
        if lease.channel == common_pb2.CHANNEL_HEAD
        and wanted.pinned_version is not None
        and lease.version == wanted.pinned_version
        and _serves(lease)
        and lease.model == wanted.model
    ]


def _serves(lease: registry_pb2.EngineLease) -> bool:
    return state_from_wire(lease.state) in SERVING_STATES


def _name_on(lease: registry_pb2.EngineLease, wanted: PolicyWanted) -> str | None:
    """The model name under which an engine serves what is wanted, or None."""
    version = wanted.pinned_version
    if version is None:
        return wanted.model if lease.channel == CHANNEL_NUMBERS[wanted.channel] else None
    if version in lease.held_versions:
        return pinned_name(wanted.model, version)
    if lease.channel == common_pb2.CHANNEL_CANDIDATE and lease.version == version:
        return wanted.model
    return None
