"""Brings a service's tables to the version that its program needs, in one transaction, at its start."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Final

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from pydantic import SecretStr
from sqlalchemy import Connection, column, inspect, table
from sqlalchemy.exc import DBAPIError

from sql_store.database import Database, take_turn
from sql_store.errors import MigrationFailed
from sql_store.failures import is_denied
from sql_store.tenants import take_for_tenant

_HOME: Final = "adapters.migrations"
_AS_OWNER: Final = "this login may not change tables: run `python -m sql_store.provision` of this version"
_IDLE_MS: Final = 120_000
"""How long a migration may do nothing on Postgres between two statements."""


class MigratedDatabase(Database):
    """A service's database: when it has started, its tables are at the version that the program needs."""

    def __init__(self, url: str | SecretStr, package: str) -> None:
        """package: the service's, see `migrate`."""
        super().__init__(url)
        self._package = package
        self._version_table = f"{package}_version"
        version = table(self._version_table, column("version_num"))
        self._tries_to_write = lambda connection: connection.execute(
            version.update().values(version_num=version.c.version_num)
        )

    async def start(self) -> None:
        """Open and migrate. Raises MigrationFailed, Unavailable, StoreFull."""
        await super().start()
        await migrate(self, self._package)

    async def has_tables(self) -> bool:
        """Whether `start` would find the tables of the service, of any version; makes nothing. Raises
        Unavailable."""
        if self.missing_file:
            return False
        return await self.run(lambda connection: inspect(connection).has_table(self._version_table))


async def migrate(
    db: Database, package: str, revision: str = "head", *, then: Callable[[Connection], None] = lambda _: None
) -> str:
    """Run the Alembic migrations of a service and return the version its tables are at now.

    `package` is the service's package (`trajectory_store`, with `adapters/migrations/versions/*.py`) or
    the migrations package itself. revision: stop there. then: called in the same transaction. Several
    processes may call it at once. Raises MigrationFailed (tables as they were; OtherTenant where they are
    another's), Unavailable, StoreFull.
    """
    folder = _folder_of(package)
    service = package.removesuffix(f".{_HOME}").rpartition(".")[2]

    def upgrade(connection: Connection) -> str:
        versions = f"{service}_version"
        take_turn(connection, "migrate")
        is_new = not inspect(connection).has_table(versions)
        reached = _upgrade(connection, folder, versions, revision)
        take_for_tenant(connection, versions, is_new=is_new)
        then(connection)
        return reached

    return await db.run(upgrade)


def knows(package: str, revision: str) -> bool:
    """Whether the migrations of a service, as installed here, have this revision."""
    try:
        return bool(ScriptDirectory.from_config(_config(_folder_of(package))).get_revision(revision))
    except CommandError:
        return False


def _folder_of(package: str) -> Path:
    for name in (f"{package}.{_HOME}", package):
        folder = _package_folder(name)
        if folder is not None and (folder / "versions").is_dir():
            return folder
    raise MigrationFailed(
        f"no migrations in package {package!r}: expected "
        f"{package.replace('.', '/')}/adapters/migrations/versions/*.py"
    )


def _package_folder(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _config(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config


def _upgrade(connection: Connection, folder: Path, version_table: str, wanted: str) -> str:
    if (
        connection.dialect.name == "postgresql"
    ):  # between two statements Python reads and compiles the scripts
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}")
    config = _config(folder)
    try:
        script = ScriptDirectory.from_config(config)
        head = script.get_current_head() if wanted == "head" else wanted
        with EnvironmentContext(
            config,
            script,
            fn=lambda revision, _: script._upgrade_revs(wanted, revision),
            destination_rev=wanted,
        ) as environment:
            environment.configure(connection=connection, version_table=version_table, render_as_batch=True)
            environment.run_migrations()
    except (CommandError, DBAPIError) as error:
        service = version_table.removesuffix("_version")
        hint = f"; {_AS_OWNER}" if is_denied(error) else ""
        raise MigrationFailed(f"cannot migrate {service}: {error}{hint}") from error
    return head or "base"
