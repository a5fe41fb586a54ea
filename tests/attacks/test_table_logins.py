"""A Postgres as `python -m sql_store.provision` leaves it: a login of a service has its own rows alone."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import Connection, text
from tests.postgres import PROGRAMS, PostgresServer
from tests.support import refused, table_logins

from service_kit.groups import SqlSettings
from sql_store import Database, MigratedDatabase, MigrationFailed
from sql_store.audit import AuditEntry, add_entry
from sql_store.logins import SERVICES, password_file, read_logins, write_logins
from sql_store.migrations import migrate
from sql_store.provision import provision
from upcycle.errors import Unavailable

pytestmark = [
    pytest.mark.skipif(PROGRAMS is None, reason="no Postgres on this machine"),
    pytest.mark.timeout(300),
]
PASSWORDS = "host all upcycle 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
ENTRY = AuditEntry(datetime(2026, 11, 30, tzinfo=UTC), "operator", "operator", "SetHead", "m", "", "done")


class WithPasswords(PostgresServer):
    """It asks everyone but its superuser for a password."""

    def start(self) -> None:
        """Start (again)."""
        (self._home / "data" / "pg_hba.conf").write_text(PASSWORDS)
        super().start()


@dataclass(frozen=True, slots=True)
class Tables:
    """A server whose superuser is `upcycle`. keys: folder of the passwords."""

    port: int
    keys: Path

    def of_superuser(self, service: str) -> str:
        return f"postgresql://upcycle@127.0.0.1:{self.port}/{service}"

    def of(self, service: str) -> str:
        """As the service's settings have it."""
        url = f"postgresql://{service}@127.0.0.1:{self.port}/{service}"
        settings = SqlSettings(url=SecretStr(url), password_file=password_file(self.keys, service))
        return settings.url_for(service)

    def provisioned(self) -> dict[str, str]:
        settings = SqlSettings(url=SecretStr(self.of_superuser("{service}")))
        return asyncio.run(provision(settings, read_logins(write_logins(self.keys))))

    def asked(self, service: str, query: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.of_superuser(service), autocommit=True) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """As an earlier version left it: tables and rows of `upcycle`, one of them a version behind."""
    with WithPasswords() as server:
        port = urlsplit(server.database()).port or 0
        made = Tables(port, tmp_path_factory.mktemp("keys"))
        with psycopg.connect(made.of_superuser("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE upcycle")
            for service in SERVICES[:3]:  # provisioning makes the fourth
                connection.execute(f"CREATE DATABASE {service}".encode())
        asyncio.run(_of_before(made))
        yield made


async def _of_before(tables: Tables) -> None:
    behind = Database(tables.of_superuser("trajectory_store"))
    await behind.start()
    await migrate(behind, "trajectory_store", "0005")
    await behind.stop()
    for service in ("scenario_runner", "checkpoint_registry"):
        database = MigratedDatabase(tables.of_superuser(service), service)
        await database.start()
        await database.run(lambda connection: add_entry(connection, ENTRY))
        await database.stop()


@pytest.fixture(scope="module")
def provisioned(tables: Tables) -> Tables:
    tables.provisioned()
    return tables


def as_service(tables: Tables, service: str, work: Callable[[Connection], object]) -> object:
    """Start as the service does, and run one transaction."""

    async def run() -> object:
        database = MigratedDatabase(tables.of(service), service)
        try:
            await database.start()
            return await database.run(work)
        finally:
            await database.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("service", SERVICES)
def test_a_login_does_nothing_but_read_and_write_its_own_rows(service: str, provisioned: Tables) -> None:
    password = password_file(provisioned.keys, service).read_text().strip()
    found = dict(table_logins.attempts(service, password, "127.0.0.1", provisioned.port))
    assert {attack: said for attack, said in found.items() if said != "refused"} == {}
    assert len(found) > len(table_logins.STATEMENTS)
    refused.note("of Postgres with the login of a service", len(found))


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_and_writes_every_table_of_its_own(service: str, provisioned: Tables) -> None:
    named = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    names = [str(name) for (name,) in provisioned.asked(service, named)]

    def work(connection: Connection) -> None:
        for name in names:
            connection.execute(text(f'SELECT count(*) FROM "{name}"'))  # noqa: S608
            if name != "audit_entry":
                connection.execute(text(f'DELETE FROM "{name}" WHERE false'))  # noqa: S608

    as_service(provisioned, service, work)
    assert f"{service}_version" in names
    assert len(names) > 1


def test_the_log_takes_entries_and_keeps_those_of_before(provisioned: Tables) -> None:
    as_service(provisioned, "checkpoint_registry", lambda connection: add_entry(connection, ENTRY))
    assert provisioned.asked("checkpoint_registry", "SELECT count(*) FROM audit_entry")[0] >= (2,)


@pytest.mark.parametrize("service", SERVICES)
def test_everything_of_a_database_is_its_owners_which_is_no_login(service: str, provisioned: Tables) -> None:
    query = (
        "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = 'public'::regnamespace "
        "UNION SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE pronamespace = 'public'::regnamespace "
        "UNION SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()"
    )
    assert provisioned.asked(service, query) == [(f"{service}_owner",)]
    can_log_in = f"SELECT rolcanlogin, rolsuper FROM pg_roles WHERE rolname = '{service}_owner'"  # noqa: S608
    assert provisioned.asked(service, can_log_in) == [(False, False)]


def test_provisioning_again_changes_nothing_and_a_renewed_password_ends_the_old_one(
    provisioned: Tables,
) -> None:
    before, old = provisioned.provisioned(), provisioned.of("model_gateway")
    assert provisioned.provisioned() == before
    as_service(provisioned, "model_gateway", lambda connection: connection.execute(text("SELECT 1")))

    write_logins(provisioned.keys, renew=["model_gateway"])
    provisioned.provisioned()
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(old)
    psycopg.connect(provisioned.of("model_gateway")).close()


def test_a_service_of_a_newer_version_says_who_brings_its_tables_there(provisioned: Tables) -> None:
    provisioned.asked("model_gateway", "UPDATE model_gateway_version SET version_num = '0005' RETURNING 1")
    try:
        with pytest.raises(MigrationFailed, match=r"python -m sql_store\.provision"):
            as_service(provisioned, "model_gateway", lambda _: None)
    finally:
        provisioned.asked(
            "model_gateway", "UPDATE model_gateway_version SET version_num = '0006' RETURNING 1"
        )


def test_a_password_of_another_service_opens_nothing(provisioned: Tables) -> None:
    stolen = password_file(provisioned.keys, "scenario_runner").read_text().strip()
    url = f"postgresql://checkpoint_registry:{stolen}@127.0.0.1:{provisioned.port}/checkpoint_registry"

    with pytest.raises(Unavailable, match="password authentication failed"):
        asyncio.run(Database(url).start())
