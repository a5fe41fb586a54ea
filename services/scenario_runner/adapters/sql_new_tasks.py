"""The new tasks of runs in one transaction, part of a PlanUnit."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from scenario_runner.adapters.sql_rows import slots_of
from scenario_runner.adapters.tables import GROUP, NEW_TASK, TASK
from scenario_runner.domain.new_tasks import NUM_NEWEST, NewTaskRow, NewTasksReport, NewTaskState
from sql_store import owned

_COLUMNS = [NEW_TASK.c[name] for name in NewTaskRow.__slots__]
_OF_RUN = NEW_TASK.c.run_id == sa.bindparam("run_id_")
_BY_NUMBER = sa.select(*_COLUMNS).where(
    _OF_RUN, NEW_TASK.c.number.in_(sa.bindparam("numbers", expanding=True))
)
_IN_STATE = (
    sa.select(*_COLUMNS)
    .where(_OF_RUN, NEW_TASK.c.state == sa.bindparam("state_"))
    .order_by(NEW_TASK.c.number)
    .limit(sa.bindparam("limit_"))
)
_RANK = sa.func.row_number().over(partition_by=NEW_TASK.c.taskset, order_by=NEW_TASK.c.number).label("rank")
_RANKED = sa.select(*_COLUMNS, _RANK).where(_OF_RUN, NEW_TASK.c.state == NewTaskState.WANTED.value).subquery()
_WANTED = (
    sa.select(*(_RANKED.c[name] for name in NewTaskRow.__slots__))
    .where(_RANKED.c.rank <= sa.bindparam("limit_"))
    .order_by(_RANKED.c.number)
)
_NEWEST = sa.select(*_COLUMNS).where(_OF_RUN).order_by(NEW_TASK.c.number.desc()).limit(NUM_NEWEST)
_ORDERED = sa.select(sa.func.count(), sa.func.max(NEW_TASK.c.number)).where(_OF_RUN)
_OPEN = (
    sa.select(sa.func.count())
    .select_from(NEW_TASK)
    .where(
        _OF_RUN,
        sa.or_(
            NEW_TASK.c.state == NewTaskState.PLAYING.value,
            sa.and_(
                NEW_TASK.c.state == NewTaskState.WANTED.value, NEW_TASK.c.taskset == sa.bindparam("taskset_")
            ),
        ),
    )
)
_IS_UNPLAYED = sa.and_(NEW_TASK.c.state == NewTaskState.PLAYING.value, NEW_TASK.c.num_groups == 0)
_UNPLAYED = (
    sa.select(*_COLUMNS)
    .where(_OF_RUN, _IS_UNPLAYED)
    .order_by(NEW_TASK.c.number)
    .limit(sa.bindparam("limit_"))
)
_PENDING = (
    sa.select(sa.func.count())
    .select_from(NEW_TASK)
    .where(_OF_RUN, sa.or_(NEW_TASK.c.state == NewTaskState.WANTED.value, _IS_UNPLAYED))
)
_PROPOSED_BY = sa.select(*_COLUMNS).where(
    _OF_RUN, NEW_TASK.c.proposed_by.in_(sa.bindparam("episode_ids", expanding=True))
)
_OPEN_PROPOSERS = (
    sa.select(sa.func.count())
    .select_from(GROUP)
    .join(TASK, owned(TASK, taskset=GROUP.c.taskset, position=GROUP.c.task_position))
    .where(
        GROUP.c.run_id == sa.bindparam("run_id_"),
        GROUP.c.is_open,
        GROUP.c.new_task.is_(None),
        TASK.c.scenario == sa.bindparam("proposer"),
    )
)
_WITH_DIGEST = sa.select(NEW_TASK.c.slug).where(
    _OF_RUN, NEW_TASK.c.digest.in_(sa.bindparam("digests", expanding=True))
)
_SUMS = ("num_groups", "num_trained", "num_left_out", "num_graded", "num_successes")
_TOTALS = (
    sa.select(NEW_TASK.c.state, sa.func.count(), *(sa.func.sum(NEW_TASK.c[name]) for name in _SUMS))
    .where(_OF_RUN)
    .group_by(NEW_TASK.c.state)
)
_FIXED = (
    "run_id number taskset task_position scenario family seed parent_slug parent_digest parent_args solved "
    "proposed_by"
)
_CHANGES = tuple(name for name in NewTaskRow.__slots__ if name not in _FIXED.split())
_WRITE = (
    sa.update(NEW_TASK)
    .where(_OF_RUN, NEW_TASK.c.number == sa.bindparam("number_"))
    .values({name: sa.bindparam(name) for name in _CHANGES})
)
_CHUNK = 500


class NewTasks:
    """Rows by run and number. What was changed is written by `flush`, and before the next reading."""

    def __init__(self, connection: sa.Connection, changed_runs: set[str]) -> None:
        self._sql = connection
        self._changed_runs = changed_runs
        self._rows: dict[tuple[str, int], NewTaskRow] = {}
        self._dirty: set[tuple[str, int]] = set()

    def of(self, run_id: str, number: int) -> NewTaskRow:
        """Of one that was ordered."""
        self.read(run_id, [number])
        return self._rows[run_id, number]

    def in_state(self, run_id: str, state: NewTaskState, limit: int) -> list[NewTaskRow]:
        """Oldest first."""
        self.flush()
        wanted = {"run_id_": run_id, "state_": state.value, "limit_": limit}
        return [self._kept(row) for row in self._sql.execute(_IN_STATE, wanted)]

    def wanted(self, run_id: str, limit: int) -> list[NewTaskRow]:
        """Of each taskset this many orders that were not answered, oldest first."""
        self.flush()
        rows = self._sql.execute(_WANTED, {"run_id_": run_id, "limit_": limit})
        return [self._kept(row) for row in rows]

    def num_open(self, run_id: str, taskset: str) -> int:
        """Played, or ordered of this taskset: orders of others may wait for an environment that is down."""
        self.flush()
        return int(self._sql.execute(_OPEN, {"run_id_": run_id, "taskset_": taskset}).scalar_one())

    def unplayed(self, run_id: str, limit: int) -> list[NewTaskRow]:
        """Those that may be played and have no group yet, oldest first."""
        self.flush()
        wanted = {"run_id_": run_id, "limit_": limit}
        return [self._kept(row) for row in self._sql.execute(_UNPLAYED, wanted)]

    def num_pending(self, run_id: str) -> int:
        """Ordered and not answered, or without a group yet."""
        self.flush()
        return int(self._sql.execute(_PENDING, {"run_id_": run_id}).scalar_one())

    def proposed_by(self, run_id: str, episode_ids: Collection[str]) -> list[NewTaskRow]:
        """What these episodes proposed, by number."""
        self.flush()
        wanted = {"run_id_": run_id, "episode_ids": sorted(episode_ids)}
        rows = [self._kept(row) for row in self._sql.execute(_PROPOSED_BY, wanted)]
        return sorted(rows, key=lambda row: row.number)

    def num_open_proposers(self, run_id: str, proposer: str) -> int:
        """Open groups on tasks of this scenario; what the unit changed of groups is written before."""
        return int(self._sql.execute(_OPEN_PROPOSERS, {"run_id_": run_id, "proposer": proposer}).scalar_one())

    def ordered(self, run_id: str) -> tuple[int, int]:
        """How many a run ordered, and the number of the next one."""
        count, highest = self._sql.execute(_ORDERED, {"run_id_": run_id}).one()
        return count, 0 if highest is None else highest + 1

    def with_digest(self, run_id: str, digests: Collection[str]) -> str:
        """Slug of the run's new task that has one of these digests; "" where none has."""
        self.flush()
        wanted = {"run_id_": run_id, "digests": sorted(digests)}
        return str(self._sql.execute(_WITH_DIGEST, wanted).scalar() or "")

    def report(self, run_id: str) -> NewTasksReport:
        """What became of all of a run."""
        self.flush()
        totals = list(self._sql.execute(_TOTALS, {"run_id_": run_id}))
        sums = [sum(int(row[2 + at]) for row in totals) for at in range(len(_SUMS))]
        newest = tuple(self._kept(row) for row in self._sql.execute(_NEWEST, {"run_id_": run_id}))
        by_state = {NewTaskState(state): int(count) for state, count, *_ in totals}
        return NewTasksReport(by_state, **dict(zip(_SUMS, sums, strict=True)), newest=newest)

    def add(self, row: NewTaskRow) -> None:
        """Order it."""
        self._sql.execute(sa.insert(NEW_TASK).values(**slots_of(row)))
        self._changed_runs.add(row.run_id)

    def update(self, row: NewTaskRow) -> None:
        """Write what changes of it."""
        self._rows[row.run_id, row.number] = row
        self._dirty.add((row.run_id, row.number))
        self._changed_runs.add(row.run_id)

    def flush(self) -> None:
        """Write what was changed."""
        if self._dirty:
            rows = [self._rows[key] for key in sorted(self._dirty)]
            changes = [
                {**slots_of(row, _CHANGES), "run_id_": row.run_id, "number_": row.number} for row in rows
            ]
            self._sql.execute(_WRITE, changes)
            self._dirty.clear()

    def read(self, run_id: str, numbers: Collection[int]) -> None:
        """Read these of a run in one go; what follows about them costs nothing."""
        missing = sorted({number for number in numbers if (run_id, number) not in self._rows})
        for start in range(0, len(missing), _CHUNK):
            wanted: Mapping[str, str | Sequence[int]] = {
                "run_id_": run_id,
                "numbers": missing[start : start + _CHUNK],
            }
            for row in self._sql.execute(_BY_NUMBER, wanted):
                self._kept(row)

    def _kept(self, row: sa.Row[Any]) -> NewTaskRow:
        found = NewTaskRow(**{**row._mapping, "state": NewTaskState(row.state)})
        self._rows[found.run_id, found.number] = found
        return found
