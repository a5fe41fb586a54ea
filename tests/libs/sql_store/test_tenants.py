"""A query by a name that an owner chose sees the rows of one tenant, also one that was built before."""

import re
from pathlib import Path

import pytest
from sqlalchemy import MetaData, String, Table, insert, select, update
from tests.libs.sql_store.support import opened

from sql_store import columns, owned

SERVICES = Path(__file__).parents[3] / "services"
NAMED = Table("named", MetaData(), *columns("tenant name value", String))
VALUES = select(NAMED.c.value).where(owned(NAMED, name="incident"))
BY_A_NAME = re.compile(
    r"\b(?!newest|highest|RUN_MIX)\w+\.c\.(model|name|request_id|checkpoint_id|digest)\s*=="
)
"""A condition that would find the rows of every tenant. (RUN_MIX is asked for rows of one run.)"""


async def test_rows_of_another_tenant_are_neither_read_nor_changed(
    sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"tenant": tenant, "name": "incident", "value": tenant} for tenant in ("default", "other")]
    change = update(NAMED).where(owned(NAMED, name="incident")).values(value="changed")
    async with opened(sql_url) as db:
        await db.run(lambda sql: NAMED.create(sql))
        await db.run(lambda sql: sql.execute(insert(NAMED), rows))
        assert await db.run(lambda sql: list(sql.execute(VALUES).scalars())) == ["default"]
        monkeypatch.setattr("sql_store.tenants.OWN_TENANT", "other")
        assert await db.run(lambda sql: sql.execute(change).rowcount) == 1
        monkeypatch.undo()
        assert await db.run(lambda sql: list(sql.execute(VALUES).scalars())) == ["default"]


async def test_a_row_that_names_no_tenant_is_of_the_current_one(
    sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"name": "incident", "value": "mine"}
    async with opened(sql_url) as db:
        await db.run(lambda sql: NAMED.create(sql))
        monkeypatch.setattr("sql_store.tenants.OWN_TENANT", "other")
        await db.run(lambda sql: sql.execute(insert(NAMED), [row, row]))
        assert await db.run(lambda sql: list(sql.execute(VALUES).scalars())) == ["mine", "mine"]
        monkeypatch.undo()
        assert await db.run(lambda sql: list(sql.execute(VALUES).scalars())) == []


def test_no_query_compares_such_a_name_by_itself() -> None:
    adapters = [path for path in SERVICES.glob("*/adapters/**/*.py") if "migrations" not in path.parts]
    lines = [(path, line) for path in adapters for line in path.read_text().splitlines()]
    assert [f"{path.name}: {line.strip()}" for path, line in lines if BY_A_NAME.search(line)] == []
