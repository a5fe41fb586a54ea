"""How the newest closed groups of a run ended is asked whenever all members of a group failed, and what they
failed of when the run does.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.planning import PlannerHarness, eval_spec, train_spec

from scenario_runner.adapters import plan_statements
from scenario_runner.domain.plan import MAX_ATTEMPTS
from scenario_runner.domain.runs import RunState
from scenario_runner.usecases import ending


async def test_the_newest_closed_groups_are_read_in_the_order_of_an_index(planner: PlannerHarness) -> None:
    """Without it, each such group sorts all groups that the run ever had, in the turn of all planners."""
    database = planner.database
    asked = plan_statements.RECENT_OUTCOMES.limit(16).params(run_id_="run-1")

    def explained(connection: sa.Connection) -> str:
        statement = str(asked.compile(connection.engine, compile_kwargs={"literal_binds": True}))
        explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
        if database.dialect != "sqlite":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        return "\n".join(str(row) for row in connection.exec_driver_sql(f"{explain} {statement}"))

    plan = await database.run(explained)
    assert "task_group_newest" in plan
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


async def played(planner: PlannerHarness, *, grades: int, failure: str) -> None:
    """The oldest open group: so many members are graded, the others fail at each attempt."""
    left = [row for row in await planner.episodes() if row.is_unsettled]
    group = min(row.group_id for row in left)
    graded = [row.member for row in left if row.group_id == group][:grades]
    for _ in range(MAX_ATTEMPTS):
        members = [row for row in await planner.episodes() if row.group_id == group and row.is_unsettled]
        for row in members:
            done = planner.graded(row.episode_id) if row.member in graded else None
            await planner.apply(done or planner.failed(row.episode_id, failure))
    rows = [row.episode_id for row in await planner.episodes() if row.group_id == group and row.is_unsettled]
    if rows:
        await planner.apply(planner.settled(group, rows))
    await planner.plan_all()


async def test_a_run_that_fails_says_what_its_last_groups_failed_of(planner: PlannerHarness) -> None:
    """The failures of the groups before, which had a graded member each, are no reason to give up."""
    await planner.begin(train_spec(group_size=3, prompts=1), num_tasks=8)
    for _ in range(4):
        await played(planner, grades=1, failure="engine_error")
        planner.now += timedelta(seconds=1)
    for _ in range(2):
        await played(planner, grades=0, failure="scenario_error")
        planner.now += timedelta(seconds=1)
    run = await planner.run()
    assert run.ending is RunState.FAILED
    expected = "the last 2 groups had no graded episode: 6 of 6 failed with scenario_error: detail"
    assert run.failure == expected


async def test_why_a_large_run_failed_is_read_from_its_newest_episodes(
    planner: PlannerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "MAX_LOOKED_AT", 4)
    await planner.begin(eval_spec(group_size=1), num_tasks=9)
    for number in range(9):
        await played(planner, grades=0, failure="engine_error" if number < 5 else "scenario_error")
        planner.now += timedelta(seconds=1)
    run = await planner.run()
    assert (run.state, run.failure) == (
        RunState.FAILED,
        "4 of the newest 4 failed with scenario_error: detail",
    )
