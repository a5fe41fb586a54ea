"""The evidence of one checkpoint is found by the checkpoint, on SQLite too."""

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from checkpoint_registry.adapters.sql_gate import SqlGateStore
from sql_store import MigratedDatabase


async def test_evidence_is_found_by_its_checkpoint_not_by_its_taskset(tmp_path: Path) -> None:
    """A taskset has the evaluations of every checkpoint that was ever played on it."""
    database = MigratedDatabase(f"sqlite:///{tmp_path / 'registry.sqlite'}", "checkpoint_registry")
    await database.start()
    asked: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "FROM evaluation" in statement:
            asked.append((statement, parameters))

    sa.event.listen(database._engine, "after_cursor_execute", note)
    await SqlGateStore(database).evaluations("ckpt-1", "digest", "profile")
    ((statement, values),) = asked

    def explain(connection: sa.Connection) -> str:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
        return " ".join(row[3] for row in rows)

    assert "evaluation_of_checkpoint (checkpoint_id=?" in await database.run(explain)
    await database.stop()
