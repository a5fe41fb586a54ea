"""The connection of a history answers as SQLAlchemy's own does."""

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import IntegrityError
from tests.simulation.statements import SimulatedConnection

from sql_store import PreparedRows, UtcDateTime

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TABLE = sa.Table(
    "t",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, unique=True),
    sa.Column("at", UtcDateTime()),
    sa.Column("is_open", sa.Boolean),
)
SOME = sa.select(TABLE).where(TABLE.c.name.in_(sa.bindparam("names", expanding=True))).order_by(TABLE.c.id)
ROWS = [
    {"name": name, "at": at, "is_open": is_open}
    for name, at, is_open in (("a", NOON, True), ("b", None, False), ("c", NOON, False))
]


def moments_and_booleans_come_back(connection: Any) -> Any:
    return [dict(row) for row in connection.execute(sa.select(TABLE).order_by(TABLE.c.id)).mappings()]


def a_list_is_expanded_to_its_size(connection: Any) -> Any:
    found = [connection.execute(SOME, {"names": names}).all() for names in (["a"], ["a", "c"], [], ["b"])]
    return [[tuple(row) for row in rows] for rows in found]


def a_statement_that_is_built_anew_has_its_own_values(connection: Any) -> Any:
    wanted = [sa.select(TABLE.c.name).where(TABLE.c.id == number).limit(1) for number in (1, 2, 9)]
    return [connection.execute(one).scalar() for one in wanted]


def changes_are_counted(connection: Any) -> Any:
    closed = connection.execute(sa.update(TABLE).where(TABLE.c.is_open).values(is_open=False)).rowcount
    added = sqlite.insert(TABLE).on_conflict_do_nothing()
    return closed, connection.execute(added, {"name": "a", "at": None, "is_open": None}).rowcount


def what_is_unique_is_refused(connection: Any) -> Any:
    with pytest.raises(IntegrityError) as refused:
        connection.execute(sa.insert(TABLE).values(name="a"))
    return str(refused.value.orig)


def prepared_rows_are_counted(connection: Any) -> Any:
    added = PreparedRows(sqlite.insert(TABLE).on_conflict_do_nothing(), ("name", "at", "is_open"))
    named = PreparedRows(
        sa.update(TABLE).where(TABLE.c.name == sa.bindparam("named")).values(at=None), ("named",)
    )
    counts = added.run(connection, [{**ROWS[0], "name": name} for name in ("a", "d", "e")])
    changed = named.run(connection, [{"named": name} for name in ("d", "x")])
    return counts, changed, moments_and_booleans_come_back(connection)


CHECKS = (
    prepared_rows_are_counted,
    moments_and_booleans_come_back,
    a_list_is_expanded_to_its_size,
    a_statement_that_is_built_anew_has_its_own_values,
    changes_are_counted,
    what_is_unique_is_refused,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_answers_as_the_real_one(check: Callable[[Any], Any]) -> None:
    raw = sqlite3.connect(":memory:", isolation_level=None)
    engine = sa.create_engine("sqlite://")
    simulated = SimulatedConnection(raw, engine.dialect)
    with engine.connect() as real:
        TABLE.create(real)
        raw.execute(str(sa.schema.CreateTable(TABLE).compile(engine)))
        for connection in (real, simulated):
            connection.execute(sa.insert(TABLE), ROWS)
        assert check(simulated) == check(real)
