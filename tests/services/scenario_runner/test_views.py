"""Views of runs for those who watch: read once for all of them, and again after every change."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.services.scenario_runner.planning import PlannerHarness, train_spec

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.runs import RunState, RunView
from scenario_runner.usecases import views as views_module
from scenario_runner.usecases.views import NoticeCache, RunViews, find_run, view_of


class Readings:
    """Counts the transactions of a plan."""

    def __init__(self, planner: PlannerHarness) -> None:
        self.planner = planner
        self.count = 0
        self.num_changes = planner.plan.num_changes

    async def read(self, work: Callable[[PlanUnit], Any]) -> Any:
        self.count += 1
        return await self.planner.plan.read(work)


async def test_many_watchers_of_one_run_cause_one_reading(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), 4)
    readings = Readings(planner)
    views = RunViews(readings)  # type: ignore[arg-type]
    seen = await asyncio.gather(*(views.latest(planner.run_id) for _ in range(20)))
    assert readings.count == 1
    assert all(view is seen[0] for view in seen)


async def test_a_change_is_seen_by_a_watcher_although_nothing_was_read_in_between(
    planner: PlannerHarness,
) -> None:
    await planner.begin(train_spec(), 4)
    views = RunViews(planner.plan)
    first = await views.latest(planner.run_id)
    await planner.pause()
    async with asyncio.timeout(60):
        while (second := await views.latest(planner.run_id)) is first:
            await asyncio.sleep(0.01)
    assert (first.run.state, second.run.state) == (RunState.RUNNING, RunState.PAUSED)


async def test_what_another_planner_changed_is_seen_too(
    planner: PlannerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views_module, "REFRESH_S", 0.05)
    await planner.begin(train_spec(), 4)
    other = PlannerHarness(planner.database)  # its own SqlPlan: this one does not count its changes
    views = RunViews(planner.plan)
    first = await views.latest(planner.run_id)
    await other.pause()
    async with asyncio.timeout(60):
        while (second := await views.latest(planner.run_id)).run.state is not RunState.PAUSED:
            await asyncio.sleep(0.01)
    assert first.run.state is RunState.RUNNING
    assert second.run.state is RunState.PAUSED


async def test_a_notice_that_is_used_again_says_what_a_new_one_would(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(steps=0, no_step_groups=2), 8)
    known: NoticeCache = {}

    def view(unit: PlanUnit) -> tuple[RunView, RunView]:
        run = find_run(unit, planner.run_id)
        return view_of(unit, run, known), view_of(unit, run)

    for group in range(4):
        members = planner.members(group)
        await planner.apply(*map(planner.graded, members))
        await planner.apply(planner.settled(planner.group_id(group), members, "excluded"))
        again, new = await planner.do(view)
        assert again == new
        again, _ = await planner.do(view)
        assert again == new
    assert "4 of 4 groups had no spread" in again.notice
