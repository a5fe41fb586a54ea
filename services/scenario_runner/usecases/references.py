"""Which runs the planner needs: those that are not over, and those that such a run draws from."""

from collections.abc import Sequence

from retention import Reference
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan


class FindReferences:
    """Releases what it does not need in the same transaction, so that no run begins to draw from it."""

    def __init__(self, plan: SqlPlan) -> None:
        self._plan = plan

    async def __call__(self, run_ids: Sequence[str], release: bool) -> Sequence[Reference]:
        """release: of runs that are not needed, no run may begin to draw from now on. Raises Unavailable."""
        if not release:
            return await self._plan.read(lambda unit: _references(unit, run_ids))

        def find_and_release(unit: PlanUnit) -> list[Reference]:
            found = _references(unit, run_ids)
            unit.source_groups.release(set(run_ids) - {one.run_id for one in found}, unit.now)
            return found

        return await self._plan.transact(find_and_release)


def _references(unit: PlanUnit, run_ids: Sequence[str]) -> list[Reference]:
    not_over = unit.source_groups.not_over(run_ids)
    drawn_from = unit.source_groups.drawn_from(run_ids) - not_over
    return [
        *(Reference(run_id, "run is not over") for run_id in sorted(not_over)),
        *(Reference(run_id, "a run draws from it") for run_id in sorted(drawn_from)),
    ]
