"""The tasksets of runs that play several, in one transaction; part of a PlanUnit."""

from collections.abc import Sequence

import sqlalchemy as sa

from scenario_runner.adapters.sql_rows import slots_of
from scenario_runner.adapters.tables import GROUP, RUN_MIX
from scenario_runner.domain.mixes import MixedRow

_KEY = ("run_id", "place")
_CHANGES = tuple(name for name in MixedRow.__slots__ if name not in (*_KEY, "name", "source_digest"))
_OF_RUN = (
    sa.select(*(RUN_MIX.c[name] for name in MixedRow.__slots__))
    .where(RUN_MIX.c.run_id == sa.bindparam("run_id_"))
    .order_by(RUN_MIX.c.place)
)
_WRITE = (
    sa.update(RUN_MIX)
    .where(RUN_MIX.c.run_id == sa.bindparam("run_id_"), RUN_MIX.c.place == sa.bindparam("place_"))
    .values({name: sa.bindparam(name) for name in _CHANGES})
)
_NEWEST_OUTCOMES = (
    sa.select(GROUP.c.outcome)
    .where(GROUP.c.run_id == sa.bindparam("run_id_"), GROUP.c.taskset == sa.bindparam("taskset_"))
    .where(GROUP.c.is_open == sa.false())
    .order_by(GROUP.c.settled_at.desc(), GROUP.c.position.desc())
    .limit(sa.bindparam("limit_"))
)


class Mixes:
    """Rows by run, each with its tasksets, the own one first. Read once; written by `flush`."""

    def __init__(self, connection: sa.Connection, changed_runs: set[str]) -> None:
        self._sql = connection
        self._changed_runs = changed_runs
        self._rows: dict[str, list[MixedRow]] = {}
        self._dirty: dict[tuple[str, int], MixedRow] = {}

    def of(self, run_id: str) -> Sequence[MixedRow]:
        """Empty for a run that plays one taskset."""
        if run_id not in self._rows:
            found = self._sql.execute(_OF_RUN, {"run_id_": run_id})
            self._rows[run_id] = [MixedRow(*row) for row in found]
        return self._rows[run_id]

    def add(self, rows: Sequence[MixedRow]) -> None:
        """Of a new run."""
        if rows:
            self._sql.execute(sa.insert(RUN_MIX), [slots_of(row) for row in rows])

    def update(self, row: MixedRow) -> None:
        """Write what changes of it."""
        rows = list(self.of(row.run_id))
        rows[row.place] = row
        self._rows[row.run_id] = rows
        self._dirty[row.run_id, row.place] = row
        self._changed_runs.add(row.run_id)

    def newest_outcomes(self, run_id: str, taskset: str, limit: int) -> list[str]:
        """Of the groups of a taskset in the run that ended last, newest first."""
        wanted = {"run_id_": run_id, "taskset_": taskset, "limit_": limit}
        return list(self._sql.execute(_NEWEST_OUTCOMES, wanted).scalars())

    def flush(self) -> None:
        """Write what was changed."""
        if self._dirty:
            changes = [
                {**slots_of(row, _CHANGES), "run_id_": row.run_id, "place_": row.place}
                for row in self._dirty.values()
            ]
            self._sql.execute(_WRITE, changes)
            self._dirty.clear()
