"""Pins of runs whose run.finished the stream lost are dropped, so that other evaluations get an engine."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from tests.libs.planned_runs.support import COMPLETED, RUNNING, Planner, asking, planner_of

from policy_engine.domain import PinRequests
from policy_engine.loops import LostEnds
from upcycle.errors import Unavailable


@dataclass
class Bench:
    """Pins of two evaluations, and the planner that is asked about them."""

    planner: Planner
    ends: LostEnds
    pins: PinRequests
    woken: list[str] = field(default_factory=list)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    pins, woken = PinRequests(), list[str]()
    planner = planner_of("m", {"run-a": COMPLETED, "run-b": RUNNING})
    pins.pin("run-a", 3)
    pins.pin("run-b", 4)
    async with asking(planner) as planned:
        yield Bench(planner, LostEnds(pins, planned, lambda: woken.append("look")), pins, woken)


async def test_the_pin_of_a_run_is_dropped_at_the_second_look_in_a_row_that_finds_it_over(
    bench: Bench,
) -> None:
    """A run.finished that is on its way arrives between two looks."""
    for state in (COMPLETED, RUNNING, COMPLETED):
        bench.planner.states["run-a"] = state
        await bench.ends.look()
        assert bench.pins.versions() == [3, 4]
    assert bench.woken == []
    await bench.ends.look()
    assert bench.pins.versions() == [4]
    assert bench.woken == ["look"]


async def test_the_pin_of_a_run_that_the_planner_does_not_know_is_kept(bench: Bench) -> None:
    """The planner's database may have been made anew."""
    bench.planner.states.clear()
    for _ in range(3):
        await bench.ends.look()
    assert bench.pins.runs == ["run-a", "run-b"]


async def test_a_run_that_the_planner_does_not_answer_about_keeps_its_pin_and_no_other(bench: Bench) -> None:
    """Unavailable is what the loop waits through."""
    bench.planner.states["run-b"] = None
    with pytest.raises(Unavailable, match="the planner, about run-b"):
        await bench.ends.look()
    assert bench.pins.versions() == [3, 4]
    with pytest.raises(Unavailable, match="the planner, about run-b"):
        await bench.ends.look()
    assert bench.pins.versions() == [4]
