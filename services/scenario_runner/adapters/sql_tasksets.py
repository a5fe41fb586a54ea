"""Tasksets with their revisions, and which side each task is on: the part of a PlanUnit that runs need."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from episodes import Split
from grpc_edge.audit import audited
from scenario_runner.adapters import plan_statements as statements
from scenario_runner.adapters.sql_rows import slots_of, task_of, taskset_of
from scenario_runner.adapters.tables import CLAIM, TASK, TASKSET
from scenario_runner.domain.environments import EnvironmentSource
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask, TaskClaim
from scenario_runner.wire import runs as wire
from sql_store import owned
from sql_store.tenants import current_tenant

_CHUNK: Final = 500
_DIGESTS: Final = 10_000  # in one statement; SQLite binds at most 32,766 values, Postgres 65,535
_REVISION: Final = re.compile(r"(?P<name>.+)@(?P<revision>[1-9][0-9]{0,8})", re.DOTALL)
_INSERTS: Final[Mapping[str, Callable[[sa.Table], Any]]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


class SqlTasksets:
    """Tasksets and splits of tasks in one transaction, part of a PlanUnit."""

    def __init__(self, connection: sa.Connection, now: datetime) -> None:
        self._sql = connection
        self.now = now

    def taskset(self, name: str) -> RegisteredTaskset | None:
        """Without its tasks: the newest revision of a name, or exactly that of `name@n`."""
        is_there = TASKSET.c.deleted_at.is_(None)
        revisions = sa.select(TASKSET).where(owned(TASKSET, name=name), is_there)
        revisions = revisions.order_by(TASKSET.c.revision.desc())
        row = self._sql.execute(revisions.limit(1)).mappings().first()
        if row is None and (exact := _REVISION.fullmatch(name)):
            that = owned(TASKSET, name=exact["name"], revision=int(exact["revision"]))
            row = self._sql.execute(sa.select(TASKSET).where(that, is_there)).mappings().first()
        return taskset_of(row) if row else None

    def source_of(self, key: str) -> EnvironmentSource:
        """Of the revision with this key, also of one that was deleted since."""
        wanted = sa.select(TASKSET.c.source).where(owned(TASKSET, storage_key=key))
        return wire.source_from_json(self._sql.execute(wanted).scalar_one())

    def tasksets(self) -> list[RegisteredTaskset]:
        """The newest revision of each, without its tasks."""
        newest = (
            sa.select(TASKSET.c.name, sa.func.max(TASKSET.c.revision).label("revision"))
            .where(owned(TASKSET), TASKSET.c.deleted_at.is_(None))
            .group_by(TASKSET.c.name)
            .subquery()
        )
        is_newest = owned(TASKSET, name=newest.c.name, revision=newest.c.revision)
        wanted = sa.select(TASKSET).join(newest, is_newest).order_by(TASKSET.c.name)
        return [taskset_of(row) for row in self._sql.execute(wanted).mappings()]

    def add_taskset(self, taskset: RegisteredTaskset) -> None:
        """A revision with its tasks."""
        self._sql.execute(
            sa.insert(TASKSET).values(
                tenant=current_tenant(),
                storage_key=taskset.key,
                name=taskset.name,
                revision=taskset.revision,
                digest=taskset.digest,
                split=taskset.split.value,
                source=wire.source_to_json(taskset.source),
                num_tasks=taskset.num_tasks,
                registered_at=self.now,
            )
        )
        rows = [
            {"taskset": taskset.key, "position": position, **slots_of(task)}
            for position, task in enumerate(taskset.tasks)
        ]
        self._insert(TASK, rows)
        what = f"registered: {taskset.num_tasks} tasks of {taskset.source.name}, split {taskset.split.value}"
        audited(self._sql, f"taskset {taskset.key}", what, digest=taskset.digest, by="planner")

    def refer_to_no_taskset(self) -> None:
        """Each run refers to a row here, and one that is about no tasks to this one, which is deleted: no
        list has it, and no name finds it."""
        insert = _INSERTS[self._sql.dialect.name](TASKSET).on_conflict_do_nothing()
        empty = {"storage_key": "", "name": "", "revision": 1, "digest": "", "source": "{}", "num_tasks": 0}
        whose = {"tenant": current_tenant(), "split": Split.TRAIN.value}
        self._sql.execute(insert.values(**empty, **whose, registered_at=self.now, deleted_at=self.now))

    def note_source(self, name: str, digest: str, outcome: str) -> None:
        """In the audit log, of the packed source of an environment, which lies in the object store."""
        audited(self._sql, f"environment {name}".strip(), outcome, digest=digest, by="retention")

    def move_taskset(self, key: str, source: EnvironmentSource) -> None:
        """The same tasks, found elsewhere."""
        moved = sa.update(TASKSET).where(owned(TASKSET, storage_key=key))
        self._sql.execute(moved.values(source=wire.source_to_json(source)))
        audited(
            self._sql, f"taskset {key}", f"environment is now {wire.source_to_json(source)}", by="planner"
        )

    def tasks(self, key: str, positions: Sequence[int] | None = None) -> dict[int, RunnableTask]:
        """Of the revision with this key, by position; all of them without positions."""
        if positions is None or len(set(positions)) > _CHUNK:
            rows = self._sql.execute(statements.ALL_TASKS, {"taskset_": key})
        else:
            wanted = {"taskset_": key, "positions": sorted(set(positions))}
            rows = self._sql.execute(statements.TASKS_AT, wanted)
        return {row["position"]: task_of(row) for row in rows.mappings()}

    def slug_of(self, keys: Collection[str], digests: Collection[str]) -> str:
        """Of a task in one of the revisions with these keys that has one of these digests; "": none has."""
        wanted = sa.select(TASK.c.slug).where(
            owned(TASK), TASK.c.taskset.in_(sorted(keys)), TASK.c.digest.in_(sorted(digests))
        )
        return str(self._sql.execute(wanted.limit(1)).scalar() or "")

    def positions_of(self, key: str, families: Collection[str]) -> list[int]:
        """Positions of the tasks of these families (none: of all) in the revision with this key, in order."""
        wanted = sa.select(TASK.c.position).where(owned(TASK, taskset=key)).order_by(TASK.c.position)
        if families:
            wanted = wanted.where(TASK.c.family.in_(sorted(families)))
        return list(self._sql.execute(wanted).scalars())

    def families(self, key: str) -> list[str]:
        """Of the revision with this key, by name."""
        wanted = sa.select(TASK.c.family).where(owned(TASK, taskset=key)).distinct()
        return sorted(self._sql.execute(wanted).scalars())

    def scenarios(self, key: str) -> list[str]:
        """That the tasks of the revision with this key play, by name."""
        wanted = sa.select(TASK.c.scenario).where(owned(TASK, taskset=key)).distinct()
        return sorted(self._sql.execute(wanted).scalars())

    def splits(self, digests: Collection[str]) -> Mapping[str, Split]:
        """Which side each of these tasks is on."""
        found = dict.fromkeys(digests, Split.UNASSIGNED)
        for chunk in _chunks(digests):
            rows = self._sql.execute(statements.SPLITS_OF, {"digests": chunk})
            found |= {digest: Split(split) for digest, split in rows}
        return found

    def claimed(self, digest: str) -> TaskClaim:
        """Of a task that is on a side."""
        wanted = sa.select(CLAIM.c.digest, CLAIM.c.split, CLAIM.c.claimed_by).where(
            owned(CLAIM, digest=digest)
        )
        row = self._sql.execute(wanted).one()
        return TaskClaim(row.digest, Split(row.split), row.claimed_by)

    def claim(self, digests: Collection[str], split: Split, claimed_by: str) -> TaskClaim | None:
        """Assign the tasks that have no split yet to this one. Returns the claim of a task that belongs to
        the other split already, in which case the caller's transaction must fail.

        The INSERT waits for another transaction that has inserted the same task and not committed yet; the
        SELECT after it then reads that claim. Digests are sorted, so two such transactions cannot deadlock.
        """
        insert = _INSERTS[self._sql.dialect.name](CLAIM).on_conflict_do_nothing()
        shared = {
            "tenant": current_tenant(),
            "split": split.value,
            "claimed_by": claimed_by,
            "claimed_at": self.now,
        }
        against: TaskClaim | None = None
        for chunk in _chunks(digests):
            known = set(self._sql.execute(statements.SPLITS_OF, {"digests": chunk}).scalars())
            rows = [{"digest": digest, **shared} for digest in chunk if digest not in known]
            if rows:
                self._sql.execute(insert, rows)
            wanted = {"digests": chunk, "split_": split.value}
            row = self._sql.execute(statements.CLAIMS_AGAINST, wanted).first()
            if row is not None and against is None:
                against = TaskClaim(row.digest, Split(row.split), row.claimed_by)
        return against

    def _insert(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._sql.execute(sa.insert(table), list(rows))


def _chunks(digests: Collection[str]) -> Iterator[list[str]]:
    rest = iter(sorted(digests))
    while chunk := list(islice(rest, _DIGESTS)):
        yield chunk
