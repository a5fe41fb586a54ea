"""How the newest closed groups of a run ended is asked whenever all members of a group failed, and what they
failed of when the run does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.planning import PlannerHarness, eval_spec, train_spec

from scenario_runner.adapters import plan_statements
from scenario_runner.domain.plan import MAX_ATTEMPTS
from scenario_runner.domain.runs import RunState
from scenario_runner.usecases import ending


async def explained(planner: PlannerHarness, statement: sa.Select[Any]) -> str:
    """How the database answers this about a run, when it has the choice."""
    database = planner.database
    asked = statement.params(run_id_="run-1")

    def found(connection: sa.Connection) -> str:
        text = str(asked.compile(connection.engine, compile_kwargs={"literal_binds": True}))
        explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
        if database.dialect != "sqlite":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        return "\n".join(str(row) for row in connection.exec_driver_sql(f"{explain} {text}"))

    return await database.run(found)


async def test_the_newest_closed_groups_are_read_in_the_order_of_an_index(planner: PlannerHarness) -> None:
    """Without it, each such group sorts all groups that the run ever had, in the turn of all planners."""
    plan = await explained(planner, plan_statements.RECENT_OUTCOMES.limit(16))
    assert "task_group_newest" in plan
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan


async def test_what_failed_last_is_read_in_the_order_of_an_index(planner: PlannerHarness) -> None:
    """`why` and each look at losses ask: without it they sort all failed episodes of the run."""
    for statement in (plan_statements.LAST_FAILURE, plan_statements.LOSSES):
        plan = await explained(planner, statement)
        assert "episode_failed" in plan
        assert "TEMP B-TREE" not in plan
        assert "Sort" not in plan
    assert "episode_failed_by_reason" in await explained(planner, plan_statements.FAILURES)


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
