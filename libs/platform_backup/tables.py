"""A service's database as files. SQLite: the file itself. Postgres: one file of COPY's text per table; the
tables are made by the service's own migrations, up to the revision that they had.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import zstandard
from pydantic import SecretStr
from sqlalchemy import Connection, MetaData, Table, make_url, select, text

from identities.tenants import ONLY_TENANT, OWN_TENANT, VARIABLE
from platform_backup.errors import BackupFailed, BackupRefused, refused_below, written_to
from platform_backup.manifest import SQLITE, DatabasePart
from sql_store.database import Database, wait_for_ever
from sql_store.migrations import migrate

_CHUNK_BYTES: Final = 256 * 1024


def backend_of(url: SecretStr) -> str:
    """`sqlite` or `postgresql`."""
    return SQLITE if make_url(url.get_secret_value()).get_backend_name() == SQLITE else "postgresql"


async def save(service: str, url: SecretStr, folder: Path) -> DatabasePart:
    """Write the tables of a service below `folder`, as they were at one instant. Raises BackupRefused where
    there are none, or they are another tenant's, BackupFailed.
    """
    if backend_of(url) == SQLITE:
        return await asyncio.to_thread(_save_sqlite, service, _file_of(url), folder / f"{service}.sqlite")
    async with _opened(url) as database:
        return await database.read(lambda connection: _save_postgres(connection, service, folder / service))


async def load(service: str, url: SecretStr, part: DatabasePart, folder: Path) -> None:
    """Make the tables of a service, which has none: all of them or, when it fails, none."""
    if backend_of(url) == SQLITE:
        await asyncio.to_thread(_load_sqlite, _file_of(url), folder / f"{service}.sqlite")
        return

    def fill(connection: Connection) -> None:
        _load_postgres(connection, part, folder / service)

    async with _opened(url) as database:
        await migrate(database, service, part.revision, then=fill)


async def rows_of(url: SecretStr) -> dict[str, int]:
    """Table -> number of rows; empty for a database without tables."""
    if backend_of(url) == SQLITE:
        path = _file_of(url)
        return await asyncio.to_thread(_sqlite_rows, path) if path.exists() else {}
    async with _opened(url) as database:
        return await database.read(_rows)


async def sessions_of(service: str, url: SecretStr) -> int:
    """How many others are connected to a Postgres database with a login of ours: the one of this command, or
    one that writes the tables of the service; 0 for SQLite."""
    if backend_of(url) == SQLITE:
        return 0
    query = text(
        "SELECT count(*) FROM pg_stat_activity s JOIN pg_roles r ON r.oid = s.usesysid"
        " WHERE s.datname = current_database() AND s.pid <> pg_backend_pid() AND (r.rolname = current_user OR"
        " NOT r.rolsuper AND has_table_privilege(r.oid, to_regclass(:version), 'UPDATE'))"
    )
    async with _opened(url) as database:
        version = {"version": f"{service}_version"}
        return int(await database.read(lambda connection: connection.execute(query, version).scalar_one()))


@asynccontextmanager
async def _opened(url: SecretStr) -> AsyncIterator[Database]:
    database = Database(url)
    try:
        await database.start()
        yield database
    finally:
        await database.stop()


def _file_of(url: SecretStr) -> Path:
    return Path(make_url(url.get_secret_value()).database or "")


def _save_sqlite(service: str, path: Path, target: Path) -> DatabasePart:
    if not path.is_file():
        raise BackupRefused(f"there is no database {path}", "name the folder of a platform that has run")
    target.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a second one beside it
    except sqlite3.OperationalError as error:  # a full disk, and what else writing meets
        raise refused_below(target.parent, f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise BackupRefused(f"{path} is no database: {error}", "name the folder of a platform") from error
    _sync(target)
    with closing(sqlite3.connect(target)) as copy:
        revision = _sqlite_revision(copy, service)
        _refuse_of_another(service, _sqlite_tenant(copy, service))
    return DatabasePart(backend=SQLITE, revision=revision, rows=_sqlite_rows(target))


def _sqlite_revision(copy: sqlite3.Connection, service: str) -> str:
    try:
        row = copy.execute(f"SELECT version_num FROM {service}_version").fetchone()  # noqa: S608
    except sqlite3.OperationalError:
        row = None
    if row is None:
        raise _unmigrated(service)
    return str(row[0])


def _sqlite_tenant(copy: sqlite3.Connection, service: str) -> str:
    try:
        return str(copy.execute(f"SELECT tenant FROM {service}_version").fetchone()[0])  # noqa: S608
    except sqlite3.OperationalError:
        return ONLY_TENANT


def _postgres_tenant(connection: Connection, version: Table) -> str:
    if "tenant" not in version.columns:
        return ONLY_TENANT
    return str(connection.execute(select(version.c.tenant)).scalar_one())


def _refuse_of_another(service: str, tenant: str) -> None:
    """Tables of before there were tenants say no name: they are of the only one."""
    if tenant != OWN_TENANT:
        raise BackupRefused(
            f"the tables of {service} belong to tenant {tenant!r}, and this command works for {OWN_TENANT!r}",
            f"set {VARIABLE}={tenant}",
        )


def _unmigrated(service: str) -> BackupRefused:
    return BackupRefused(
        f"the database of {service} says no revision of its tables",
        f"start {service} once, which ends its migrations, stop it, and repeat the command",
    )


def _load_sqlite(path: Path, source: Path) -> None:
    """What is left of a database that was here is removed first: SQLite would play it over this one."""
    with written_to(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        with partial.open("wb") as target, source.open("rb") as content:
            while chunk := content.read(_CHUNK_BYTES):
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        for left in ("-wal", "-shm", "-journal"):
            path.with_name(f"{path.name}{left}").unlink(missing_ok=True)
        partial.replace(path)


def _sqlite_rows(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608
            for (name,) in sorted(named)
            if not name.startswith("sqlite_")
        }


def _save_postgres(connection: Connection, service: str, folder: Path) -> DatabasePart:
    metadata = _tables(connection)
    version = f"{service}_version"
    if version not in metadata.tables:
        raise BackupRefused(
            f"the database of {service} has no tables of {service}",
            "see that UPCYCLE_SQL_URL names the databases of a platform that has run",
        )
    wait_for_ever(connection)
    folder.mkdir(parents=True, exist_ok=True)
    revision = connection.exec_driver_sql(f"SELECT version_num FROM {version}").scalar()  # noqa: S608
    if revision is None:
        raise _unmigrated(service)
    _refuse_of_another(service, _postgres_tenant(connection, metadata.tables[version]))
    columns = {
        table.name: [column.name for column in table.columns if column.computed is None]
        for table in metadata.sorted_tables  # a table comes after those that it refers to
        if table.name != version
    }
    for table, names in columns.items():
        _copy_out(connection, table, names, folder / _file_name(table))
    return DatabasePart(
        backend="postgresql",
        revision=revision,
        rows=_rows(connection),
        columns=columns,
        sequences=_sequences(connection),
    )


def _load_postgres(connection: Connection, part: DatabasePart, folder: Path) -> None:
    wait_for_ever(connection)
    for table in reversed(part.columns):  # rows that a migration puts into its tables
        connection.exec_driver_sql(f"DELETE FROM {_quoted(table)}")  # noqa: S608
    for table, names in part.columns.items():
        # What triggers wrote is in the backup, as rows of its own.
        connection.exec_driver_sql(f"ALTER TABLE {_quoted(table)} DISABLE TRIGGER USER")
        _copy_in(connection, table, names, folder / _file_name(table))
    for table in part.columns:
        connection.exec_driver_sql(f"ALTER TABLE {_quoted(table)} ENABLE TRIGGER USER")
    for sequence, last in part.sequences.items():
        connection.execute(text("SELECT setval(:name, :last)"), {"name": f'"{sequence}"', "last": last})
    if (found := _rows(connection)) != part.rows:
        raise BackupFailed(f"restored rows {found}, the backup has {part.rows}")


def _copy_out(connection: Connection, table: str, names: list[str], path: Path) -> None:
    statement = f"COPY {_quoted(table)} ({', '.join(map(_quoted, names))}) TO STDOUT"
    compressor = zstandard.ZstdCompressor()
    with (
        path.open("wb") as file,
        compressor.stream_writer(file, closefd=False) as packed,
        _cursor(connection) as cursor,
        cursor.copy(statement) as rows,
    ):
        for row in rows:
            packed.write(row)
    _sync(path)


def _copy_in(connection: Connection, table: str, names: list[str], path: Path) -> None:
    statement = f"COPY {_quoted(table)} ({', '.join(map(_quoted, names))}) FROM STDIN"
    with _cursor(connection) as cursor, cursor.copy(statement) as rows, path.open("rb") as file:
        for chunk in _chunks(file):
            rows.write(chunk)


def _chunks(file: Any) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor().stream_reader(file) as unpacked:
        while chunk := unpacked.read(_CHUNK_BYTES):
            yield chunk


def _rows(connection: Connection) -> dict[str, int]:
    counts = {}
    for name in sorted(_tables(connection).tables):
        query = f"SELECT count(*) FROM {_quoted(name)}"  # noqa: S608 - names come from the catalogue
        counts[name] = int(connection.exec_driver_sql(query).scalar_one())
    return counts


def _sequences(connection: Connection) -> dict[str, int]:
    query = "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = current_schema()"
    return {name: last for name, last in connection.exec_driver_sql(query) if last is not None}


def _tables(connection: Connection) -> MetaData:
    metadata = MetaData()
    metadata.reflect(connection)
    return metadata


def _cursor(connection: Connection) -> Any:
    """psycopg's own, in the running transaction: SQLAlchemy has no COPY."""
    return connection.connection.driver_connection.cursor()  # type: ignore[union-attr]


def _file_name(table: str) -> str:
    return f"{table}.copy.zst"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
