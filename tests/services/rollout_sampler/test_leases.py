"""The list of engines while engines fail and the registry is away."""

import math
from typing import Any, cast

import pytest

from rollout_sampler.adapters.leases import LeaseCache
from upcycle.api.registry.v1 import registry_pb2, service_pb2
from upcycle.errors import Unavailable


class RegistryStub:
    """Lists one engine, or is away; counts the questions."""

    def __init__(self) -> None:
        self.is_away = False
        self.num_asked = 0

    async def ListEngines(
        self, request: service_pb2.ListEnginesRequest, timeout: float
    ) -> service_pb2.ListEnginesResponse:
        self.num_asked += 1
        if self.is_away:
            raise Unavailable("the registry")
        return service_pb2.ListEnginesResponse(engines=[registry_pb2.EngineLease(engine_id="e-1", model="m")])


def cache(registry: RegistryStub) -> LeaseCache:
    """It reads again only after `forget`."""
    return LeaseCache(cast(Any, registry), max_age_s=math.inf)


async def test_an_engine_that_fails_while_the_registry_is_away_does_not_lose_the_others() -> None:
    registry = RegistryStub()
    leases = cache(registry)
    known = await leases.of_model("m")
    registry.is_away = True
    leases.forget()
    assert [lease.engine_id for lease in await leases.of_model("m")] == ["e-1"]
    assert await leases.of_model("m") == known
    assert registry.num_asked == 2, "a registry that hangs would cost each request its timeout"


async def test_a_failure_makes_the_next_request_read_the_leases_again() -> None:
    registry = RegistryStub()
    leases = cache(registry)
    await leases.of_model("m")
    await leases.of_model("m")
    leases.forget()
    await leases.of_model("m")
    assert registry.num_asked == 2


async def test_without_a_list_and_without_a_registry_the_episode_waits() -> None:
    registry = RegistryStub()
    registry.is_away = True
    with pytest.raises(Unavailable, match="the registry, to find engines"):
        await cache(registry).of_model("m")
