"""What leak scans and attacks found in tasksets, part of a PlanUnit. Writes happen at once."""

import json
from collections.abc import Collection
from typing import Any, Final

import sqlalchemy as sa

from grpc_edge.audit import audited
from scenario_runner.adapters.tables import TASKSET_CHECK
from scenario_runner.domain.taskset_checks import CheckKind, TasksetCheck, surplus
from sql_store import owned
from sql_store.tenants import current_tenant

_KEY: Final = ("taskset", "kind", "model", "source_digest")


class TasksetChecks:
    """One row for each revision, kind, model and source."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection

    def want_scan(self, taskset: str, source_digest: str) -> None:
        """Order a leak scan of a revision, unless one of this source of its environment left nothing out."""
        wanted = TasksetCheck(taskset, CheckKind.LEAK_SCAN, source_digest)
        row = self._sql.execute(sa.select(TASKSET_CHECK).where(_is(wanted))).mappings().first()
        if row is None or _check_of(row).stopped:
            self.put(wanted)

    def due(self) -> list[TasksetCheck]:
        """Leak scans that are ordered and have not ended."""
        wanted = sa.select(TASKSET_CHECK).where(owned(TASKSET_CHECK), TASKSET_CHECK.c.checked_at.is_(None))
        return [_check_of(row) for row in self._sql.execute(wanted).mappings()]

    def put(self, check: TasksetCheck) -> None:
        """In place of an earlier one of the same kind, model and source, and of those that are more
        than are kept."""
        self._sql.execute(sa.delete(TASKSET_CHECK).where(_is(check)))
        self._sql.execute(sa.insert(TASKSET_CHECK).values(tenant=current_tenant(), **_values(check)))
        self._drop_surplus(check)
        if check.checked_at is not None:
            self._audit(check)

    def finish(self, check: TasksetCheck) -> bool:
        """A scan that was ordered has ended. False: its revision was deleted meanwhile."""
        # An update, because a deletion that runs beside it finds the row before it or after it.
        done = self._sql.execute(sa.update(TASKSET_CHECK).where(_is(check)).values(**_values(check)))
        if done.rowcount:
            self._audit(check)
        return bool(done.rowcount)

    def _drop_surplus(self, kept: TasksetCheck) -> None:
        checks = self.of({kept.taskset})
        scans = (one.source_digest for one in checks if one.kind is CheckKind.LEAK_SCAN)
        # `of` gives the newest scan first, and a registration orders that of the source as it is then.
        now = kept.source_digest if kept.kind is CheckKind.LEAK_SCAN else next(scans, kept.source_digest)
        for one in surplus((one for one in checks if one.kind is kept.kind), kept, now):
            self._sql.execute(sa.delete(TASKSET_CHECK).where(_is(one)))

    def _audit(self, check: TasksetCheck) -> None:
        against = f" against {check.model}" if check.model else ""
        what = f"{check.kind.value}{against}: {check.num_findings} found in {check.num_looked} tasks"
        audited(self._sql, f"taskset {check.taskset}", what, digest=check.source_digest, by=check.checked_by)

    def of(self, tasksets: Collection[str]) -> list[TasksetCheck]:
        """Of these revisions: those under way, then the newest first."""
        wanted = sa.select(TASKSET_CHECK).where(
            owned(TASKSET_CHECK), TASKSET_CHECK.c.taskset.in_(sorted(tasksets))
        )
        moment = TASKSET_CHECK.c.checked_at
        order = moment.is_not(None), moment.desc(), *(TASKSET_CHECK.c[name] for name in _KEY)
        return [_check_of(row) for row in self._sql.execute(wanted.order_by(*order)).mappings()]

    def forget(self, tasksets: Collection[str]) -> None:
        """Of revisions that are deleted."""
        of_them = owned(TASKSET_CHECK), TASKSET_CHECK.c.taskset.in_(sorted(tasksets))
        self._sql.execute(sa.delete(TASKSET_CHECK).where(*of_them))


def _is(check: TasksetCheck) -> sa.ColumnElement[bool]:
    return owned(TASKSET_CHECK, **{name: _values(check)[name] for name in _KEY})


def _values(check: TasksetCheck) -> dict[str, Any]:
    values = {name: getattr(check, name) for name in TasksetCheck.__slots__}
    return {**values, "kind": check.kind.value, "findings": json.dumps(check.findings)}


def _check_of(row: sa.RowMapping) -> TasksetCheck:
    values = {name: row[name] for name in TasksetCheck.__slots__}
    findings = tuple(json.loads(row["findings"]))
    return TasksetCheck(**{**values, "kind": CheckKind(row["kind"]), "findings": findings})
