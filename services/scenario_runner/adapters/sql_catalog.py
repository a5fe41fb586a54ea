"""What is registered, for people, and what becomes of it; part of a PlanUnit. Writes happen at once."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from episodes import Split
from grpc_edge.audit import audited
from scenario_runner.adapters.sql_rows import taskset_of
from scenario_runner.adapters.tables import CLAIM, RUN, RUN_MIX, TASK, TASKSET
from scenario_runner.domain.mixes import tasksets_of
from scenario_runner.domain.tasksets import TasksetFacts, TasksetUser
from scenario_runner.wire import runs as wire
from sql_store import owned
from upcycle.tasks import plain_name


class Catalog:
    """Tasksets that are not deleted, with what is known of each."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection

    def newest(self) -> list[TasksetFacts]:
        """The newest revision of each name, by name."""
        by_name = {one.taskset.name: one for one in self._facts()}
        return [by_name[name] for name in sorted(by_name)]

    def revisions(self, name: str) -> list[TasksetFacts]:
        """Of a name, oldest first."""
        return self._facts(name=name)

    def _facts(self, **of: str) -> list[TasksetFacts]:
        wanted = sa.select(TASKSET).where(owned(TASKSET, **of), TASKSET.c.deleted_at.is_(None))
        rows = self._sql.execute(wanted.order_by(TASKSET.c.revision)).mappings()
        return [TasksetFacts(taskset_of(row), row["registered_at"]) for row in rows]

    def sides(self, keys: Collection[str]) -> Mapping[str, Mapping[Split, int]]:
        """How many tasks are on which side, by the key of their revision."""
        side = sa.func.coalesce(CLAIM.c.split, Split.UNASSIGNED.value)
        counted = (
            sa.select(TASK.c.taskset, side, sa.func.count())
            .select_from(TASK)
            .join(CLAIM, owned(CLAIM, digest=TASK.c.digest), isouter=True)
            .where(owned(TASK), TASK.c.taskset.in_(sorted(keys)))
            .group_by(TASK.c.taskset, side)
        )
        found: dict[str, dict[Split, int]] = {key: {} for key in keys}
        for key, split, count in self._sql.execute(counted):
            found[key][Split(split)] = count
        return found

    def runs_on(self, name: str, keys: Collection[str]) -> list[TasksetUser]:
        """Runs that play these revisions of a taskset, or whose gate judges by them, newest first."""
        mixes = sa.select(RUN_MIX.c.run_id).where(RUN_MIX.c.taskset.in_(sorted(keys)))
        columns = (RUN.c.run_id, RUN.c.taskset, RUN.c.spec, RUN.c.model, RUN.c.removed_at, RUN.c.is_emptied)
        plays = RUN.c.taskset.in_(sorted(keys)) | RUN.c.run_id.in_(mixes)
        may_judge = RUN.c.spec.contains('"gate"')
        wanted = sa.select(*columns).where(owned(RUN), plays | may_judge).order_by(RUN.c.submitted_at.desc())
        return list(self._users(self._sql.execute(wanted).all(), name, keys))

    def _users(self, rows: Iterable[Any], name: str, keys: Collection[str]) -> Iterator[TasksetUser]:
        for run_id, taskset, spec, model, removed_at, is_emptied in rows:
            is_gone = removed_at is not None and bool(is_emptied)
            found = wire.spec_from_json(spec)
            if taskset in keys or name in map(plain_name, tasksets_of(found)[1:]):
                yield TasksetUser(run_id, model, is_gone=is_gone)
            elif (gate := found.gate) is not None and name in (gate.taskset, plain_name(gate.taskset)):
                yield TasksetUser(run_id, model, is_gone=is_gone, is_gated=True)

    def num_audits(self, name: str) -> int:
        """How many runs have opened a taskset for audits, in any of its revisions."""
        is_of_name = owned(TASKSET, storage_key=RUN.c.taskset, name=name)
        opened = sa.select(sa.func.count()).select_from(RUN).join(TASKSET, is_of_name)
        return int(self._sql.execute(opened.where(owned(RUN, split=Split.AUDIT.value))).scalar_one())

    def newest_runs(self, limit: int) -> list[str]:
        """Their ids, newest first."""
        order = RUN.c.submitted_at.desc(), RUN.c.run_id.desc()
        wanted = sa.select(RUN.c.run_id).where(owned(RUN)).order_by(*order).limit(limit)
        return list(self._sql.execute(wanted).scalars())

    def numbered(self, name: str) -> int:
        """The highest revision that a name ever had; 0 for a new one."""
        highest = sa.select(sa.func.max(TASKSET.c.revision)).where(owned(TASKSET, name=name))
        return int(self._sql.execute(highest).scalar() or 0)

    def is_taken(self, key: str) -> bool:
        """Whether a revision has, or had, this key."""
        wanted = sa.select(TASKSET.c.storage_key).where(owned(TASKSET, storage_key=key))
        return self._sql.execute(wanted).first() is not None

    def delete(self, keys: Collection[str], moment: datetime) -> None:
        """Their tasks go, their rows are marked."""
        self._sql.execute(sa.delete(TASK).where(owned(TASK), TASK.c.taskset.in_(sorted(keys))))
        mine = owned(TASKSET), TASKSET.c.storage_key.in_(sorted(keys))
        self._sql.execute(sa.update(TASKSET).where(*mine).values(deleted_at=moment))
        for key in sorted(keys):
            audited(self._sql, f"taskset {key}", "deleted", by="planner")
