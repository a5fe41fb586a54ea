"""Runs are counted from their rows before they end.

A run's numbers are added up while it goes on; at its end its rows say what they are. Nothing of it is in
flight then, so its rows change no more. A small run is counted in the transaction that ends it. A larger one,
which may have millions of episodes, is counted before by the sweep: a few pieces each time, in transactions
that only read and hold up no planner.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from episodes import Purpose
from identities.entities import group_id
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.recounts import Recount, groups_at_once
from scenario_runner.domain.runs import FINAL_RUN_STATES, RunRecord

log = logging.getLogger(__name__)

PIECES_AT_ONCE: Final = 8
"""Of one run in one sweep, which other runs wait for."""
_REWARD_TOLERANCE: Final = 1e-6


def is_settled(unit: PlanUnit, run: RunRecord) -> bool:
    """Whether the run is to end, and every episode and every offer of it is settled."""
    return (
        is_to_end(run)
        and not unit.num_in_flight(run.run_id)
        and not unit.source_groups.load(run.run_id).offered
    )


def is_to_end(run: RunRecord) -> bool:
    """Whether no group will be planned for a run that is not over."""
    is_planned = run.spec.purpose is Purpose.EVAL and run.next_position >= run.num_tasks
    return run.state not in FINAL_RUN_STATES and (run.ending is not None or is_planned)


def recounted(unit: PlanUnit, run: RunRecord, counted: Recount | None) -> RunRecord | None:
    """The run as its rows say, its groups corrected; None: it is large, and must be counted before.

    counted: what the sweep counted; it does not serve if the run has changed since.
    """
    whole = Recount(unit.counts(run.run_id))
    if counted is not None and counted.counts == whole.counts and counted.num_groups == run.next_position:
        return corrected(run, counted)
    if not whole.is_small:
        return None
    group_ids = _group_ids(run, 0, run.next_position)
    whole = unit.recount(whole, group_ids)
    if whole.num_wrong:
        unit.correct_groups(group_ids)
    return corrected(run, whole)


def corrected(run: RunRecord, recount: Recount) -> RunRecord:
    """The run with the numbers of its rows."""
    found = replace(run, num_graded=recount.num_graded, num_successes=recount.num_successes)
    if not math.isclose(recount.reward_sum, run.reward_sum, abs_tol=_REWARD_TOLERANCE):
        found = replace(found, reward_sum=recount.reward_sum)  # not only added in another order
    if found != run or recount.num_wrong:
        counted = f"{run.num_graded} graded, {run.num_successes} successes, {run.reward_sum:g} in all"
        extra = {"run_id": run.run_id, "counted": counted, "graded": recount.num_graded}
        log.error("run_was_miscounted", extra={**extra, "groups": recount.num_wrong})
    return found


class Recounts:
    """Of large runs that are to end, as far as they are counted."""

    def __init__(self, plan: SqlPlan) -> None:
        self._plan = plan
        self._begun: dict[str, Recount] = {}

    def forget(self, run_id: str) -> None:
        """The run is over."""
        self._begun.pop(run_id, None)

    async def __call__(self, run: RunRecord) -> Recount | None:
        """The whole run; None while it is not counted, or need not be. Counts the next pieces of it."""
        if not is_to_end(run):
            return None
        begun = await self._plan.read(partial(_begun, run_id=run.run_id))
        if begun is None:
            return None
        recount = self._begun.get(run.run_id, begun)
        if recount.counts != begun.counts:  # something has changed after all
            recount = begun
        for _ in range(PIECES_AT_ONCE):
            if recount.num_groups >= run.next_position:
                break
            recount = await self._next_piece(run, recount)
        self._begun[run.run_id] = recount
        return recount if recount.num_groups >= run.next_position else None

    async def _next_piece(self, run: RunRecord, recount: Recount) -> Recount:
        end = min(run.next_position, recount.num_groups + groups_at_once(run.spec.group_size))
        group_ids = _group_ids(run, recount.num_groups, end)
        longer = await self._plan.read(lambda unit: unit.recount(recount, group_ids))
        if longer.num_wrong > recount.num_wrong:
            await self._plan.transact(lambda unit: unit.correct_groups(group_ids))
        return longer


def _begun(unit: PlanUnit, run_id: str) -> Recount | None:
    """Of a large run of which everything is settled."""
    run = unit.run(run_id)
    if run is None or not is_settled(unit, run):
        return None
    recount = Recount(unit.counts(run_id))
    return None if recount.is_small else recount


def _group_ids(run: RunRecord, start: int, end: int) -> Sequence[str]:
    return [group_id(run.run_id, position) for position in range(start, end)]
