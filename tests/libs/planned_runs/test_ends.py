"""The ends of runs, asked of the planner where the stream lost them."""

from collections.abc import AsyncIterator

import pytest
from tests.libs.planned_runs.support import CANCELLED, COMPLETED, RUNNING, Planner, asking, planner_of

from planned_runs import EndsSeenTwice, PlannedRuns
from upcycle.errors import Unavailable

RUNS = ("run-a", "run-b")


@pytest.fixture
def planner() -> Planner:
    return planner_of("m", {"run-a": COMPLETED, "run-b": RUNNING})


@pytest.fixture
async def planned(planner: Planner) -> AsyncIterator[PlannedRuns]:
    async with asking(planner) as planned:
        yield planned


async def test_a_run_is_named_at_the_second_look_in_a_row_that_finds_it_over(
    planner: Planner, planned: PlannedRuns
) -> None:
    ends = EndsSeenTwice(planned)
    for state in (COMPLETED, RUNNING, COMPLETED):
        planner.states["run-a"] = state
        assert await ends.look(RUNS) == []
    planner.states["run-b"] = CANCELLED
    assert [(run.run_id, run.state) for run in await ends.look(RUNS)] == [("run-a", COMPLETED)]
    assert [run.run_id for run in await ends.look(RUNS)] == ["run-a", "run-b"]


async def test_a_look_asks_about_each_run_once(planner: Planner, planned: PlannedRuns) -> None:
    ends = EndsSeenTwice(planned)
    await ends.look(RUNS)
    await ends.look(RUNS)
    assert sorted(planner.asked) == sorted([*RUNS, *RUNS])


async def test_a_run_that_is_not_answered_holds_up_no_other(planner: Planner, planned: PlannedRuns) -> None:
    ends = EndsSeenTwice(planned)
    planner.states["run-0"] = None
    runs = ("run-0", *RUNS)
    assert await ends.look(runs) == []
    assert [run.run_id for run in await ends.look(runs)] == ["run-a"]
    assert set(ends.unanswered) == {"run-0"}
    with pytest.raises(Unavailable, match="the planner, about run-0"):
        ends.check_answered()


async def test_a_look_that_was_not_answered_does_not_count(planner: Planner, planned: PlannedRuns) -> None:
    ends = EndsSeenTwice(planned)
    await ends.look(RUNS)
    planner.states["run-a"] = None
    assert await ends.look(RUNS) == []
    planner.states["run-a"] = COMPLETED
    assert [run.run_id for run in await ends.look(RUNS)] == ["run-a"]
    ends.check_answered()


async def test_a_run_that_the_planner_does_not_know_is_not_over_and_has_no_model(
    planner: Planner, planned: PlannedRuns
) -> None:
    assert await planned.model_of("run-a") == "m"
    planner.states.clear()
    assert await planned.model_of("run-a") is None
    ends = EndsSeenTwice(planned)
    for _ in range(3):
        assert await ends.look(RUNS) == []
