"""When the gateway asks the registry to hold a version: once for all requests, and again while it is used."""

import asyncio
from typing import Any, cast

import pytest

from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.errors import NoRoom
from model_gateway.usecases.holding import HoldVersions

V1 = ModelTarget("m", 1)


class Registry:
    """Grants what is asked, until it has no room."""

    def __init__(self) -> None:
        self.asked: list[tuple[ModelTarget, float]] = []
        self.is_full = False

    async def hold(self, target: ModelTarget, ttl_s: float) -> None:
        self.asked.append((target, ttl_s))
        await asyncio.sleep(0)
        if self.is_full:
            raise NoRoom("m@v2 is held for 'ann' until noon", param="model")


def holding(registry: Registry, clock: list[float]) -> HoldVersions:
    return HoldVersions(cast(Any, registry), hold_s=100.0, monotonic=lambda: clock[0])


async def test_many_requests_ask_once() -> None:
    registry, clock = Registry(), [0.0]
    held = holding(registry, clock)
    await asyncio.gather(*(held.hold(V1) for _ in range(20)))
    await held.hold(V1)
    assert registry.asked == [(V1, 100.0)]
    clock[0] = 1.0  # it is not served yet: the engine may have died
    await held.hold(V1)
    assert len(registry.asked) == 2


async def test_a_version_that_is_used_stays_held_and_one_that_is_not_does_not() -> None:
    registry, clock = Registry(), [0.0]
    held = holding(registry, clock)
    await held.hold(V1)
    for now, asked in ((49.0, 1), (50.0, 2), (60.0, 2), (100.0, 3)):
        clock[0] = now
        held.used(V1)
        held.used(ModelTarget("m", 2))  # an engine serves it for another reason
        await asyncio.sleep(0.01)
        assert len(registry.asked) == asked, now
    registry.is_full = True
    clock[0] = 200.0
    held.used(V1)  # what fails here is tried with the next request, and no request fails of it
    await asyncio.sleep(0.01)
    assert len(registry.asked) == 4


async def test_a_refusal_is_repeated_for_a_moment() -> None:
    registry, clock = Registry(), [0.0]
    registry.is_full = True
    held = holding(registry, clock)
    for _ in range(3):
        with pytest.raises(NoRoom, match="for 'ann' until noon") as full:
            await held.hold(V1)
        assert full.value.param == "model"
    assert len(registry.asked) == 1
    registry.is_full = False
    clock[0] = 1.0
    await held.hold(V1)
    assert len(registry.asked) == 2


def test_nothing_is_held_where_that_is_off() -> None:
    assert not HoldVersions(cast(Any, Registry()), hold_s=0.0).is_on
    assert holding(Registry(), [0.0]).is_on
