"""Plans of the statements that a piece of work runs, and what they read whole."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from sql_store import Database

_SQLITE_SCAN = re.compile(r"^(SCAN (?P<table>\w+)(?P<how>.*)|SEARCH (?P<of>\w+) (?P<by>.*\(tenant=\?\)))$")
_EXPLAINED = re.compile(r"\s*(SELECT|UPDATE|DELETE|WITH)\b")
_BY_TENANT = re.compile(r"^\(\(?tenant\)?(::text)? = '?[^']*'?(::\w+)*\)$")
"""An index of which a statement knows the tenant alone: there is one tenant."""


@dataclass(frozen=True)
class WholeScan:
    """A table that a statement reads from one end to the other, or until it has enough. how: of the plan."""

    table: str
    how: str
    statement: str
    is_limited: bool
    """It stops at a LIMIT of its own, and meets the rows in the order that it wants them in."""


async def scans_of(database: Database, work: Callable[[], Awaitable[object]]) -> list[WholeScan]:
    """Of everything that the work asks this database."""
    asked = await _asked(database, work)
    explain = _of_sqlite if database.dialect == "sqlite" else _of_postgres
    return await database.run(
        lambda connection: [scan for one, values in asked for scan in explain(connection, one, values)]
    )


async def rows_visited(database: Database, work: Callable[[], Awaitable[object]]) -> int:
    """Rows of tables and indexes that Postgres looks at for the work, found unfit or not."""
    asked = await _asked(database, work)

    def visit(connection: sa.Connection) -> int:
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        return sum(
            _visited(_explained(connection, "ANALYZE, ", one, values))
            for one, values in asked
            if one.lstrip().startswith("SELECT")
        )

    return await database.run(visit)


async def _asked(database: Database, work: Callable[[], Awaitable[object]]) -> list[tuple[str, Any]]:
    """Each statement once, with the first values that it had."""
    seen: dict[str, Any] = {}

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if _EXPLAINED.match(statement):
            is_many = isinstance(parameters, list) and parameters and not isinstance(parameters[0], str | int)
            seen.setdefault(statement, parameters[0] if is_many else parameters)

    sa.event.listen(database._engine, "after_cursor_execute", note)
    try:
        await work()
    finally:
        sa.event.remove(database._engine, "after_cursor_execute", note)
    return list(seen.items())


def _of_sqlite(connection: sa.Connection, statement: str, values: Any) -> Iterator[WholeScan]:
    rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    is_sorted = any("TEMP B-TREE FOR ORDER BY" in row[3] for row in rows)
    is_limited = " LIMIT " in statement.replace("\n", " ") and not is_sorted
    for row in rows:
        if (found := _SQLITE_SCAN.match(row[3])) and found["table"] != "CONSTANT":
            table, how = found["table"] or found["of"], found["how"] or found["by"] or ""
            yield WholeScan(table, how.strip(), statement, is_limited)


def _of_postgres(connection: sa.Connection, statement: str, values: Any) -> Iterator[WholeScan]:
    # Tables of a test are so small that reading them whole is cheapest; what has no other way stays a scan.
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    yield from _scans(_explained(connection, "", statement, values), statement, is_limited=False)


def _explained(connection: sa.Connection, how: str, statement: str, values: Any) -> Mapping[str, Any]:
    (answer,) = connection.exec_driver_sql(f"EXPLAIN ({how}FORMAT JSON) {statement}", values).one()
    root: Mapping[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return root


def _visited(node: Mapping[str, Any]) -> int:
    below = sum(map(_visited, node.get("Plans", ())))
    if "Relation Name" not in node and "Index Name" not in node:
        return below
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    rows = float(node["Actual Rows"]) + sum(float(node.get(name, 0)) for name in removed)
    return below + round(rows * float(node["Actual Loops"]))


def _scans(node: Mapping[str, Any], statement: str, *, is_limited: bool) -> Iterator[WholeScan]:
    kind, condition = node["Node Type"], node.get("Index Cond", "")
    is_by_index = kind.startswith("Index") and "Relation Name" in node
    if kind == "Seq Scan" or (is_by_index and (not condition or _BY_TENANT.match(condition))):
        how = f"{kind} {node.get('Index Name', '')} {condition}".strip()
        yield WholeScan(node["Relation Name"], how, statement, is_limited and kind != "Seq Scan")
    is_limited = kind == "Limit" or (is_limited and kind in ("Nested Loop", "Result"))
    for child in node.get("Plans", ()):
        yield from _scans(child, statement, is_limited=is_limited)
