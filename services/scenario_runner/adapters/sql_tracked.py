"""Tracked rates in one transaction, part of a PlanUnit."""

import json
from typing import Any

import sqlalchemy as sa

from scenario_runner.adapters.tables import TRACKED
from scenario_runner.domain.tracked import OPEN_STATES, TrackedRow, TrackedState

_KEY = ("run_id", "taskset", "step")


class TrackedRates:
    """Rows by run, set and step."""

    def __init__(self, connection: sa.Connection, changed_runs: set[str]) -> None:
        self._sql = connection
        self._changed_runs = changed_runs

    def of(self, run_id: str) -> list[TrackedRow]:
        """Oldest step first."""
        wanted = (
            sa.select(TRACKED).where(TRACKED.c.run_id == run_id).order_by(TRACKED.c.step, TRACKED.c.taskset)
        )
        return [_row_of(row) for row in self._sql.execute(wanted).mappings()]

    def open_runs(self) -> list[str]:
        """Runs with a row that is due or played."""
        is_open = TRACKED.c.state.in_(sorted(state.value for state in OPEN_STATES))
        return list(self._sql.execute(sa.select(TRACKED.c.run_id).where(is_open).distinct()).scalars())

    def add(self, row: TrackedRow) -> None:
        """Once for each run, set and step."""
        mine = [TRACKED.c[name] == getattr(row, name) for name in _KEY]
        if self._sql.execute(sa.select(TRACKED.c.step).where(*mine)).first() is None:
            self._sql.execute(sa.insert(TRACKED).values(**_values(row)))
            self._changed_runs.add(row.run_id)

    def update(self, row: TrackedRow) -> None:
        """Write its state and what it brought."""
        mine = [TRACKED.c[name] == getattr(row, name) for name in _KEY]
        self._sql.execute(sa.update(TRACKED).where(*mine).values(**_values(row)))
        self._changed_runs.add(row.run_id)


def _values(row: TrackedRow) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in TrackedRow.__slots__}
    return {**values, "state": row.state.value, "outcomes": json.dumps(row.outcomes)}


def _row_of(row: sa.RowMapping) -> TrackedRow:
    outcomes = {task: tuple(one) for task, one in json.loads(row["outcomes"]).items()}
    state = TrackedState(row["state"])
    return TrackedRow(**{**row, "state": state, "outcomes": outcomes})
