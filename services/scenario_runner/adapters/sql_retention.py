"""Old runs in SQL, part of a PlanUnit: which are old, what stays of them, and the deletion of their rows."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from grpc_edge.audit import audited
from identities.entities import RECORDED_RUN
from scenario_runner.adapters.tables import (
    EPISODE,
    GROUP,
    NEW_TASK,
    OFFERED_SESSION,
    RUN,
    RUN_COUNT,
    RUN_MIX,
    SOURCE_GROUP,
    TASKSET,
)
from scenario_runner.domain.retention import FinishedRun, RunSummary
from scenario_runner.wire.summaries import summary_from_json, summary_to_json
from sql_store import owned
from upcycle.environment.deployed import DEPLOYED

_GROUPS_AT_ONCE: Final = 100
# These very texts: SQLite takes a partial index only for the condition it was made with.
_FINISHED: Final = sa.text("finished_at IS NOT NULL AND removed_at IS NULL")
_EMPTYING: Final = sa.text("removed_at IS NOT NULL AND NOT is_emptied")


class OldRuns:
    """Writes happen at once."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection

    def finished(self, before: datetime, after: tuple[datetime, str] | None, limit: int) -> list[FinishedRun]:
        """Runs that were over before a moment, oldest first, beginning after a key."""
        at, run_id = RUN.c.finished_at, RUN.c.run_id
        query = sa.select(run_id, at, RUN.c.model).where(_FINISHED, owned(RUN), at < before)
        if after is not None:
            query = query.where((at > after[0]) | ((at == after[0]) & (run_id > after[1])))
        rows = self._sql.execute(query.order_by(at, run_id).limit(limit)).all()
        # Asked apart: as a column of the rows, Postgres looks at every group that any run ever drew.
        drawn = self._drawn_from([name for name, *_ in rows])
        return [FinishedRun(name, moment, model, name in drawn) for name, moment, model in rows]

    def _forget_sessions(self, run_id: str) -> None:
        """The ledger knows which of the sessions trained."""
        self._sql.execute(sa.delete(OFFERED_SESSION).where(OFFERED_SESSION.c.run_id == run_id))
        of_sessions = SOURCE_GROUP.c.source_run_id.startswith(RECORDED_RUN, autoescape=True)
        self._sql.execute(sa.delete(SOURCE_GROUP).where(SOURCE_GROUP.c.run_id == run_id, of_sessions))

    def _drawn_from(self, run_ids: Sequence[str]) -> set[str]:
        """Of these, those from which a run drew that is still there."""
        source = SOURCE_GROUP.c.source_run_id
        query = sa.select(source).join_from(SOURCE_GROUP, RUN, RUN.c.run_id == SOURCE_GROUP.c.run_id)
        query = query.where(source.in_(run_ids), RUN.c.removed_at.is_(None)).distinct()
        return set(self._sql.execute(query).scalars())

    def removable(self, run_ids: Collection[str]) -> list[str]:
        """Of these, the runs that are over, not removed, and from which no run that is still there drew."""
        query = sa.select(RUN.c.run_id).where(_FINISHED, RUN.c.run_id.in_(sorted(run_ids)))
        finished = set(self._sql.execute(query).scalars())
        return sorted(finished - self._drawn_from(sorted(finished)))

    def sources_in_use(self, digests: Collection[str]) -> dict[str, str]:
        """Of these digests of sources, those that something refers to, and what."""
        runs = sa.select(RUN.c.source_digest).where(
            owned(RUN), RUN.c.source_digest.in_(sorted(digests)), RUN.c.removed_at.is_(None)
        )
        of_mix = RUN_MIX.c.source_digest
        mixed = sa.select(of_mix).join_from(RUN_MIX, RUN, RUN.c.run_id == RUN_MIX.c.run_id)
        mixed = mixed.where(owned(RUN), of_mix.in_(sorted(digests)), RUN.c.removed_at.is_(None))
        judges = self._sql.execute(runs.union(mixed)).scalars()
        used = dict.fromkeys(judges, "a run was judged by it")
        sources = sa.select(TASKSET.c.source).where(
            owned(TASKSET), TASKSET.c.deleted_at.is_(None), TASKSET.c.source.contains(DEPLOYED)
        )
        texts = self._sql.execute(sources.distinct()).scalars().all()
        named = {digest for digest in digests if any(f"{DEPLOYED}{digest}" in text for text in texts)}
        return used | dict.fromkeys(named, "a taskset is of it")

    def remove(self, run_id: str, summary: RunSummary, moment: datetime) -> None:
        """From now on its summary stands for its rows, and no run may draw from it."""
        values: dict[str, Any] = {"summary": summary_to_json(summary), "removed_at": moment}
        released = sa.func.coalesce(RUN.c.released_at, sa.bindparam("moment", moment, RUN.c.released_at.type))
        mine = RUN.c.run_id == run_id
        self._sql.execute(sa.update(RUN).where(mine).values(**values, released_at=released))
        audited(self._sql, f"run {run_id}", f"removed: {summary.why}", by="retention")

    def summary(self, run_id: str) -> RunSummary:
        """Of a removed run."""
        query = sa.select(RUN.c.summary).where(RUN.c.run_id == run_id)
        return summary_from_json(self._sql.execute(query).scalar_one())

    def empty_some(self) -> bool:
        """Delete some groups of a removed run with everything below them. False: there are none."""
        emptying = sa.select(RUN.c.run_id).where(_EMPTYING).order_by(RUN.c.run_id).limit(1)
        run_id = self._sql.execute(emptying).scalar()
        if run_id is None:
            return False
        some = sa.select(GROUP.c.group_id).where(GROUP.c.run_id == run_id).limit(_GROUPS_AT_ONCE)
        group_ids: Sequence[str] = self._sql.execute(some).scalars().all()
        for table in (SOURCE_GROUP, EPISODE, GROUP):
            self._sql.execute(sa.delete(table).where(table.c.group_id.in_(group_ids)))
        if len(group_ids) < _GROUPS_AT_ONCE:
            self._forget_sessions(run_id)
            self._sql.execute(sa.delete(NEW_TASK).where(NEW_TASK.c.run_id == run_id))
            self._sql.execute(sa.delete(RUN_COUNT).where(RUN_COUNT.c.run_id == run_id))
            emptied = sa.update(RUN).where(RUN.c.run_id == run_id).values(is_emptied=sa.true())
            self._sql.execute(emptied)
        return True
