"""Which engines are alive, by the leases in the registry: read at most once a second, and after a failure."""

import asyncio
import math
from collections.abc import Sequence
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


class LeaseCache:
    """The leases of each model, cached."""

    def __init__(self, registry: "RegistryServiceAsyncStub", *, max_age_s: float = 1.0) -> None:
        self._registry = registry
        self._max_age_s = max_age_s
        self._cached: dict[str, tuple[float, Sequence[registry_pb2.EngineLease]]] = {}
        self._reading: dict[str, asyncio.Task[Sequence[registry_pb2.EngineLease]]] = {}

    async def of_model(self, model: str) -> Sequence[registry_pb2.EngineLease]:
        """Live leases of a model's engines. Raises Unavailable when the registry does not answer."""
        loop = asyncio.get_running_loop()
        cached = self._cached.get(model)
        if cached is not None and loop.time() - cached[0] < self._max_age_s:
            return cached[1]
        if (reading := self._reading.get(model)) is None:
            reading = self._reading[model] = loop.create_task(self._read(model))
            reading.add_done_callback(lambda _: self._reading.pop(model, None))
        return await asyncio.shield(reading)

    def forget(self) -> None:
        """Read again at the next call; the last list stays for as long as the registry is unavailable."""
        self._cached = {model: (-math.inf, leases) for model, (_, leases) in self._cached.items()}

    async def _read(self, model: str) -> Sequence[registry_pb2.EngineLease]:
        request = service_pb2.ListEnginesRequest(model=model)
        leases: Sequence[registry_pb2.EngineLease]
        try:
            with peer_errors(f"list engines of {model}", ()):
                leases = (await self._registry.ListEngines(request, timeout=_LIST_TIMEOUT_S)).engines
        except Unavailable as error:
            if model not in self._cached:
                raise Unavailable(f"the registry, to find an engine of {model}") from error
            # Engines go on without the registry: the last list is still the best one, and asking costs time.
            leases = self._cached[model][1]
        self._cached[model] = (asyncio.get_running_loop().time(), leases)
        return leases


def choices_among(leases: Sequence[registry_pb2.EngineLease], wanted: PolicyWanted) -> list[EngineChoice]:
    """The engines among `leases` that can sample what is wanted."""
    found = []
    for lease in leases:
        name = _name_on(lease, wanted)
        serves = state_from_wire(lease.state) in SERVING_STATES
        if name is not None and serves and lease.model == wanted.model:
            found.append(EngineChoice(lease.engine_id, lease.base_url, name, lease))
    return found


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
