"""Pins are as the planner has the runs, also where the stream lost a run.submitted or a run.finished."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.libs.planned_runs.support import COMPLETED, RUNNING, Planner, asking, planner_of

from policy_engine.domain import PinRequests
from policy_engine.loops import PlannedPins
from upcycle.api.common.v1.common_pb2 import PURPOSE_EVAL, PURPOSE_TRAIN
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.errors import Unavailable


@dataclass
class Bench:
    """Pins of two evaluations, and the planner that is asked about them."""

    planner: Planner
    ends: PlannedPins
    pins: PinRequests
    woken: list[str] = field(default_factory=list)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    pins, woken = PinRequests(), list[str]()
    planner = planner_of("m", {"run-a": COMPLETED, "run-b": RUNNING})
    pins.pin("run-a", 3)
    pins.pin("run-b", 4)
    async with asking(planner) as planned:
        ends = PlannedPins("m", pins, planned, lambda: woken.append("look"))
        yield Bench(planner, ends, pins, woken)


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


def listed(
    run_id: str, version: int, *, model: str = "m", state: Any = RUNNING, purpose: Any = PURPOSE_EVAL
) -> taskset_pb2.Run:
    run = taskset_pb2.Run(run_id=run_id, state=state)
    run.spec.purpose = purpose
    run.spec.policy.model, run.spec.policy.pinned_version = model, version
    return run


async def test_an_open_evaluation_whose_submission_the_stream_lost_is_pinned(bench: Bench) -> None:
    """What pins nothing, is over or of another model is not."""
    bench.planner.listed = [
        listed("run-lost", 7),
        listed("run-b", 4),
        listed("run-over", 8, state=COMPLETED),
        listed("run-other", 9, model="other"),
        listed("run-train", 10, purpose=PURPOSE_TRAIN),
    ]
    await bench.ends.look()
    assert bench.pins.versions() == [3, 4, 7]
    assert bench.woken == ["look"]
    await bench.ends.look()
    assert bench.pins.versions() == [4, 7], "run-a is over at two looks"


async def test_open_runs_are_pinned_also_where_an_end_is_not_answered(bench: Bench) -> None:
    bench.planner.states["run-b"] = None
    bench.planner.listed = [listed("run-lost", 7)]
    with pytest.raises(Unavailable, match="the planner, about run-b"):
        await bench.ends.look()
    assert bench.pins.versions() == [3, 4, 7]
