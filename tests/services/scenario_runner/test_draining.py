"""A runner that is stopped lets the episodes end that are being played, and opens no more."""

import asyncio

import pytest
from tests.services.scenario_runner.fleets import ARITH, Fleet

from scenario_runner.domain.environments import FleetFull

LONG_S = 600.0
"""More than any pause of the machine."""


async def test_it_waits_for_the_grade_of_what_is_open_and_opens_no_more(fleet: Fleet) -> None:
    opened = await fleet.open("sum", '{"a": 1, "b": 2}', source=ARITH)
    draining = asyncio.create_task(fleet.leases.drain(LONG_S))
    await asyncio.sleep(0)
    with pytest.raises(FleetFull, match="is being stopped"):
        await fleet.open()
    assert not (await fleet.call(opened, "add", '{"a": 1, "b": 2}')).is_error
    assert not draining.done()
    assert (await fleet.grade(opened, "3")).reward == 1.0
    await asyncio.wait_for(draining, 30)
    assert fleet.leases.num_alive == 0


async def test_nothing_open_is_nothing_to_wait_for(fleet: Fleet) -> None:
    await asyncio.wait_for(fleet.leases.drain(LONG_S), 30)


async def test_environments_without_calls_are_not_waited_for(fleet: Fleet) -> None:
    await fleet.open()
    await asyncio.wait_for(fleet.leases.drain(0.3), 30)
    assert fleet.leases.num_alive == 1
