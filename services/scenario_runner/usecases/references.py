"""Which runs the planner needs: those that are not over, and those that such a run draws from.

What ended less than a day ago counts as not over. Services are asked one after the other: a run that ends in
between is open for none of them, and its checkpoint was not there when the registry answered. A run that the
plan does not have may be in the plan that this one replaces.
"""

from collections.abc import Collection, Sequence
from typing import Final

from identities.entities import is_interactive_run, is_recorded_run
from retention import MIN_AGE, Reference
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.retention import Progress

_WHY: Final = {
    Progress.OPEN: "run is not over",
    Progress.OVER: "run ended less than a day ago",
    Progress.HELD: "interactive training drew from it less than a day ago",
}


class FindReferences:
    """Releases what it does not need in the same transaction, so that no run begins to draw from it."""

    def __init__(self, plan: SqlPlan) -> None:
        self._plan = plan

    async def __call__(self, run_ids: Collection[str], release: bool) -> Sequence[Reference]:
        """release: of runs that are not needed, no run may begin to draw from now on. Raises Unavailable."""
        if not release:
            return await self._plan.read(lambda unit: _references(unit, run_ids))

        def find_and_release(unit: PlanUnit) -> list[Reference]:
            found = _references(unit, run_ids)
            free, held_since = set(run_ids) - {one.run_id for one in found}, unit.now - MIN_AGE
            held = unit.source_groups.release(free, unit.now, held_since=held_since)
            return [*found, *(Reference(run_id, _WHY[Progress.HELD]) for run_id in sorted(held))]

        return await self._plan.transact(find_and_release)


def _references(unit: PlanUnit, run_ids: Collection[str]) -> list[Reference]:
    before = unit.now - MIN_AGE
    known = unit.source_groups.progress_of(run_ids, before)
    whys = {run_id: _WHY[progress] for run_id, progress in known.items() if progress in _WHY}
    unknown = {run_id for run_id in run_ids if run_id not in known and not _is_of_others(run_id)}
    drawn_from = unit.source_groups.drawn_from(run_ids, before) - whys.keys()
    return [
        *(Reference(run_id, why) for run_id, why in sorted(whys.items())),
        *(Reference(run_id, "a run draws from it") for run_id in sorted(drawn_from)),
        *(Reference(run_id, "unknown to the planner") for run_id in sorted(unknown - drawn_from)),
    ]


def _is_of_others(run_id: str) -> bool:
    """No planner plans these."""
    return is_interactive_run(run_id) or is_recorded_run(run_id)
