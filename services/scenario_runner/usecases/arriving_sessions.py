"""Recorded sessions as they are graded: a run with `sessions_idle_s` looks for them until none that can train
came for so long.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.recorded_sessions import GradedSession
from scenario_runner.domain.runs import OPEN_RUN_STATES, RunRecord
from scenario_runner.ports import RecordedSessions
from scenario_runner.usecases.session_groups import take_arrived
from service_kit.loops import one_piece
from upcycle.errors import Unavailable
from upcycle.session_query import SessionQuery, parse_sessions

log = logging.getLogger(__name__)

_OUT_OF_ORDER: Final = timedelta(minutes=10)
"""How much later than other rewards the trajectory store may tell of one."""


class TakeSessions:
    """One look for new sessions of all runs that take them as they come. gather: how long a group waits for
    more sessions from its first reward. wake: called when there is something to offer."""

    def __init__(
        self, plan: SqlPlan, sessions: RecordedSessions, *, gather: timedelta, wake: Callable[[], None]
    ) -> None:
        self._plan = plan
        self._sessions = sessions
        self._gather = gather
        self._wake = wake

    async def __call__(self) -> None:
        """Raises Unavailable at the end, if one of the runs is to be tried again."""
        failed: Unavailable | None = None
        for run in await self._plan.read(_taking):
            try:
                with one_piece(f"recorded sessions of {run.run_id}", of=run.run_id):
                    await self._look_for(run)
            except Unavailable as error:  # the other runs go on
                failed = error
        if failed is not None:
            raise failed

    async def _look_for(self, run: RunRecord) -> None:
        query = await self._plan.read(lambda unit: _not_looked_at(unit, run, self._gather))
        found = await self._sessions.graded(run.spec.policy.model, query)
        if not found:
            return
        num_fit = await self._plan.transact(lambda unit: _take(unit, run.run_id, found, self._gather))
        if num_fit:
            log.info("sessions_taken", extra={"run_id": run.run_id, "groups": num_fit})
            self._wake()


def _taking(unit: PlanUnit) -> list[RunRecord]:
    return [run for run in unit.active_runs() if _takes(run)]


def _takes(run: RunRecord) -> bool:
    return bool(run.spec.sessions_idle_s) and run.ending is None and run.state in OPEN_RUN_STATES


def _take(unit: PlanUnit, run_id: str, found: Sequence[GradedSession], gather: timedelta) -> int:
    run = unit.run(run_id)
    return take_arrived(unit, run, found, gather) if run is not None and _takes(run) else 0


def _not_looked_at(unit: PlanUnit, run: RunRecord, gather: timedelta) -> SessionQuery:
    """The run's query from where its looks have come to: they cost the same however long it goes on."""
    query = parse_sessions(run.spec.sessions)
    since, _ = query.span(run.submitted_at)
    newest, _ = unit.source_groups.newest_ends(run.run_id)
    if newest is not None:
        reached = newest - gather - _OUT_OF_ORDER
        since = reached if since is None else max(since, reached)
    return replace(query, since=since)


def sessions_end_at(unit: PlanUnit, run: RunRecord) -> datetime | None:
    """When a run stops waiting for sessions, if none that can train comes; None: it takes none as they come.
    Time in which no planner looked, and before a person resumed the run, does not count."""
    if not _takes(run):
        return None
    _, newest_fit = unit.source_groups.newest_ends(run.run_id)
    moments = (run.submitted_at, run.resumed_at, newest_fit)
    began_at = unit.watched.began_at(max(moment for moment in moments if moment is not None))
    return began_at + timedelta(seconds=run.spec.sessions_idle_s)
