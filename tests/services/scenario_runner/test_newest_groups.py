"""How the newest closed groups of a run ended is asked whenever all members of a group failed."""

from __future__ import annotations

import sqlalchemy as sa
from tests.services.scenario_runner.planning import PlannerHarness

from scenario_runner.adapters import plan_statements


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
