"""Removes the groups and episodes of old runs. The run stays, with its totals.

The totals are written and the run is marked in one transaction; its rows are deleted after it, in bounded
ones. Whatever a kill leaves is ended by the next sweep, and no reader counts rows of a marked run.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from retention import KEPT_FOR_EVER, References, SweepOrder, SweepReport, after_from, older_than
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.retention import FinishedRun, RunSummary
from scenario_runner.usecases.views import find_run

_BATCH: Final = 50
_DRAWN_FROM: Final = "a run that drew from it is there"


class RemoveRuns:
    """Oldest first, batch by batch."""

    def __init__(
        self,
        plan: SqlPlan,
        references: References,
        age: timedelta | None,
        *,
        now: Callable[[], datetime],
        batch: int = _BATCH,
    ) -> None:
        """age: after which runs go; None: never."""
        self._plan = plan
        self._references = references
        self._age = age
        self._now = now
        self._batch = batch

    async def __call__(self, order: SweepOrder) -> SweepReport:
        """Raises InvalidRequest, Unavailable."""
        if order.apply:
            await self.end_begun()
        age = order.older_than or self._age
        if age is None:
            return SweepReport(KEPT_FOR_EVER)
        policy = older_than(age)
        before = self._now() - age
        after = after_from(order.after, _place) if order.after else None
        found = await self._plan.read(lambda unit: unit.old_runs.finished(before, after, self._batch))
        if not found:
            return SweepReport(policy)
        kept = await self._kept(found)
        going = [run.run_id for run in found if run.run_id not in kept]
        if order.apply and going:
            going = await self._plan.transact(lambda unit: _remove(unit, going, policy))
            await self.end_begun()
        return SweepReport(
            policy,
            number=len(going),
            oldest=min((run.finished_at for run in found if run.run_id in going), default=None),
            kept=dict(Counter(kept.values())),
            next=_encoded(found[-1]) if len(found) == self._batch else "",
        )

    async def end_begun(self) -> None:
        """Delete what is left of runs that are marked as removed, in transactions of some groups each."""
        while await self._plan.transact(lambda unit: unit.old_runs.empty_some()):
            pass

    async def _kept(self, found: Sequence[FinishedRun]) -> Mapping[str, str]:
        """By id of each run that is needed: why."""
        references = await self._references.to_runs({run.run_id: run.model for run in found}, release=False)
        drawn = {run.run_id: _DRAWN_FROM for run in found if run.is_drawn_from}
        return {**drawn, **{one.run_id: one.why for one in references}}


def _remove(unit: PlanUnit, run_ids: Sequence[str], policy: str) -> list[str]:
    """Mark those that may still go, one after the other; returns them."""
    gone = unit.old_runs.removable(run_ids)
    for run_id in gone:
        run = find_run(unit, run_id)
        summary = RunSummary(unit.counts(run_id), unit.source_groups.tallies(run.run_id), policy)
        unit.old_runs.remove(run_id, summary, unit.now)
    return gone


def _encoded(last: FinishedRun) -> str:
    return json.dumps([last.finished_at.isoformat(), last.run_id])


def _place(encoded: Any) -> tuple[datetime, str]:
    finished_at, run_id = encoded
    return datetime.fromisoformat(finished_at).astimezone(UTC), str(run_id)
