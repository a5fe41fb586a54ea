"""Migrations run from a package, once, whole or not at all, also when several processes start together."""

import asyncio
import itertools
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, text

from sql_store import Database, MigrationFailed, migrate
from sql_store.errors import OtherTenant

_SERIAL = itertools.count()

FIRST = '''
"""First tables."""
import sqlalchemy as sa
from alembic import op
from sql_store import outbox_table

revision = "0001"
down_revision = None

def upgrade() -> None:
    op.create_table("runs", sa.Column("id", sa.Text, primary_key=True), sa.Column("state", sa.Text))
    outbox_table(sa.MetaData()).create(op.get_bind())
'''

SECOND = '''
"""Narrow a column, which SQLite can only do by copying the table."""
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

def upgrade() -> None:
    op.execute("INSERT INTO runs (id, state) VALUES ('r1', 'new')")
    with op.batch_alter_table("runs") as table:
        table.alter_column("state", nullable=False, existing_type=sa.Text)
        table.add_column(sa.Column("model", sa.Text, server_default="m"))
'''

BROKEN = '''
"""Fails half way."""
from alembic import op

revision = "0003"
down_revision = "0002"

def upgrade() -> None:
    op.execute("CREATE TABLE half (id INTEGER)")
    op.execute("INSERT INTO nowhere VALUES (1)")
'''


class Package:
    """A service package on sys.path whose migrations grow."""

    def __init__(self, root: Path) -> None:
        self.name = f"migrated_service_{next(_SERIAL)}"
        self._versions = root / self.name / "adapters" / "migrations" / "versions"
        self._versions.mkdir(parents=True)
        for folder in (self._versions.parent, self._versions.parent.parent, root / self.name):
            (folder / "__init__.py").write_text("")

    def add(self, *sources: str) -> None:
        for source in sources:
            number = len(list(self._versions.glob("*.py"))) + 1
            (self._versions / f"{number:04}_step.py").write_text(source)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    return Package(tmp_path / "site")


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


async def test_tables_are_brought_to_the_newest_version_step_by_step(sql_url: str, package: Package) -> None:
    db = Database(sql_url)
    package.add(FIRST)
    assert await migrate(db, package.name) == "0001"
    assert await db.run(tables) == {"runs", "outbox", f"{package.name}_version"}
    package.add(SECOND)
    assert await migrate(db, package.name) == "0002"
    assert await migrate(db, f"{package.name}.adapters.migrations") == "0002"
    rows = await db.run(
        lambda connection: connection.execute(text("SELECT id, state, model FROM runs")).all()
    )
    assert [tuple(row) for row in rows] == [("r1", "new", "m")]
    await db.stop()


async def test_a_step_that_fails_leaves_the_tables_as_they_were(sql_url: str, package: Package) -> None:
    db = Database(sql_url)
    package.add(FIRST, SECOND)
    await migrate(db, package.name)
    package.add(BROKEN)
    with pytest.raises(MigrationFailed, match="nowhere"):
        await migrate(db, package.name)
    assert "half" not in await db.run(tables)
    version = text(f"SELECT version_num FROM {package.name}_version")  # noqa: S608
    assert await db.run(lambda connection: connection.execute(version).scalar_one()) == "0002"
    await db.stop()


async def test_replicas_that_start_together_migrate_once(sql_url: str, package: Package) -> None:
    package.add(FIRST, SECOND)
    replicas = [Database(sql_url) for _ in range(3)]
    assert await asyncio.gather(*(migrate(db, package.name) for db in replicas)) == ["0002"] * 3
    rows = await replicas[0].run(lambda connection: connection.execute(text("SELECT id FROM runs")).all())
    assert len(rows) == 1
    for db in replicas:
        await db.stop()


async def test_a_database_from_a_newer_program_is_refused(sql_url: str, package: Package) -> None:
    db = Database(sql_url)
    package.add(FIRST)
    await migrate(db, package.name)
    update = text(f"UPDATE {package.name}_version SET version_num = '0009'")  # noqa: S608
    await db.run(lambda connection: connection.execute(update))
    with pytest.raises(MigrationFailed, match="0009"):
        await migrate(db, package.name)
    await db.stop()


async def test_a_package_without_migrations_is_named(tmp_path: Path) -> None:
    db = Database(f"sqlite:///{tmp_path / 'x.sqlite'}")
    with pytest.raises(MigrationFailed, match=r"json/adapters/migrations/versions"):
        await migrate(db, "json")
    with pytest.raises(MigrationFailed, match="no migrations in package 'no_such_service'"):
        await migrate(db, "no_such_service")
    await db.stop()


async def test_tables_of_another_tenant_are_refused_and_stay_as_they_are(
    sql_url: str, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = Database(sql_url)
    package.add(FIRST)
    monkeypatch.setattr("sql_store.tenants.OWN_TENANT", "acme")
    await migrate(db, package.name)
    await migrate(db, package.name)
    package.add(SECOND)
    monkeypatch.setattr("sql_store.tenants.OWN_TENANT", "beta")
    with pytest.raises(OtherTenant, match=r"belong to tenant 'acme'.*UPCYCLE_TENANT=acme"):
        await migrate(db, package.name)
    version = text(f"SELECT version_num FROM {package.name}_version")  # noqa: S608
    assert await db.run(lambda connection: connection.execute(version).scalar_one()) == "0001"
    await db.stop()


async def test_tables_of_a_program_that_knew_no_tenants_belong_to_the_only_one(
    sql_url: str, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = Database(sql_url)
    package.add(FIRST)
    await migrate(db, package.name)
    forget = text(f"ALTER TABLE {package.name}_version DROP COLUMN tenant")
    await db.run(lambda connection: connection.execute(forget))
    monkeypatch.setattr("sql_store.tenants.OWN_TENANT", "acme")
    with pytest.raises(OtherTenant, match="belong to tenant 'default'"):
        await migrate(db, package.name)
    monkeypatch.undo()
    await migrate(db, package.name)
    await db.stop()
