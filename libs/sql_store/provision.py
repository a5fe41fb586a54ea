"""A database and a login for each service that keeps tables, at one Postgres, with its tables as this version
needs them: `python -m sql_store.provision LOGINS`. Safe to repeat.

Two roles of each database: its owner, as which migrations run here and no one logs in, and the service's
login, which opens this database alone, reads and writes rows, and adds to the audit log. Neither the tables,
nor the triggers that protect the log, are the service's to change.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import URL, make_url

from service_kit.errors import SqlPasswordRefused
from service_kit.groups import SERVICE_IN_URL, SqlSettings
from service_kit.settings import EXIT_SETTINGS, SettingsError, load_settings
from sql_store.audit import TABLE_NAME
from sql_store.database import Database
from sql_store.errors import MigrationFailed
from sql_store.logins import SERVICES, read_logins
from sql_store.migrations import migrate
from upcycle.errors import Unavailable

_PROGRAM: Final = "sql_store.provision"
_HOME: Final = "postgres"
"""A database that each server has: for what is of no other one."""
_CONNECT_S: Final = 10
_OWNED_BY_OTHERS: Final = """
    SELECT c.oid::regclass::text AS name, 'TABLE' AS kind FROM pg_class c
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
      AND c.relowner <> %(owner)s::regrole AND NOT EXISTS (
        SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.classid = 'pg_class'::regclass
          AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i'))
    UNION ALL
    SELECT p.oid::regprocedure::text, 'ROUTINE' FROM pg_proc p
    WHERE p.pronamespace = 'public'::regnamespace AND p.proowner <> %(owner)s::regrole
"""
"""Of a database. A sequence of a column goes with its table."""


@dataclass(frozen=True, slots=True)
class Place:
    """One service's database, seen by who may make it. url: with the login of that one."""

    service: str
    url: URL

    @property
    def login(self) -> str:
        """Of the service; the database has the same name."""
        return str(self.url.database)

    @property
    def owner(self) -> str:
        """As which migrations run."""
        return f"{self.login}_owner"


async def provision(settings: SqlSettings, verifiers: Mapping[str, str]) -> dict[str, str]:
    """Service -> version of its tables now. settings: of a superuser, or of who may make roles and databases.
    verifiers: of the services' passwords. Raises psycopg.Error, MigrationFailed, Unavailable."""
    places = [Place(service, make_url(settings.url_for(service))) for service in SERVICES]
    await asyncio.to_thread(_make_roles_and_databases, places, verifiers)
    reached = {}
    for place in places:
        await asyncio.to_thread(_in_transaction, place, _hand_over)
        reached[place.service] = await _migrated(place)
        await asyncio.to_thread(_in_transaction, place, _allow_rows)
    return reached


def _make_roles_and_databases(places: list[Place], verifiers: Mapping[str, str]) -> None:
    with _connected(places[0].url.set(database=_HOME)) as connection:
        for place in places:
            _make_role(connection, place.owner, "NOLOGIN")
            _make_role(connection, place.login, f"LOGIN PASSWORD '{verifiers[place.service]}'")
            _run(connection, "GRANT {owner} TO CURRENT_USER", place)  # in whose name it is given away
            if _has(connection, "SELECT 1 FROM pg_database WHERE datname = %s", place.login):
                _run(connection, "ALTER DATABASE {login} OWNER TO {owner}", place)
            else:
                _run(connection, "CREATE DATABASE {login} OWNER {owner}", place)
            _run(connection, "REVOKE ALL ON DATABASE {login} FROM PUBLIC", place)
            _run(connection, "GRANT CONNECT ON DATABASE {login} TO {login}", place)
        _close_others(connection)


def _make_role(connection: psycopg.Connection[Any], name: str, rights: str) -> None:
    """rights: is no input of a caller, who could end the statement: a verifier is base64."""
    verb = "ALTER" if _has(connection, "SELECT 1 FROM pg_roles WHERE rolname = %s", name) else "CREATE"
    statement = sql.SQL("{verb} ROLE {name} {rights}")
    names = {"verb": sql.SQL(verb), "name": sql.Identifier(name), "rights": sql.SQL(rights)}
    connection.execute(statement.format(**names))


def _close_others(connection: psycopg.Connection[Any]) -> None:
    """The server's own databases, which every login may open until somebody says otherwise."""
    query = "SELECT datname FROM pg_database WHERE datallowconn AND pg_get_userbyid(datdba) = CURRENT_USER"
    for (name,) in connection.execute(query).fetchall():
        connection.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(sql.Identifier(name)))


def _hand_over(connection: psycopg.Connection[Any], place: Place) -> None:
    """What is there, of a platform with one login or of a restore, becomes the owner's."""
    _run(connection, "ALTER SCHEMA public OWNER TO {owner}", place)
    _run(connection, "REVOKE ALL ON SCHEMA public FROM PUBLIC", place)
    _run(connection, "GRANT USAGE ON SCHEMA public TO {login}", place)
    for name, kind in connection.execute(_OWNED_BY_OTHERS, {"owner": _quoted(place.owner)}).fetchall():
        _run(connection, f"ALTER {kind} {name} OWNER TO {{owner}}", place)  # quoted by the server itself


async def _migrated(place: Place) -> str:
    """As the owner, so that what migrations make is the owner's. Raises MigrationFailed, Unavailable."""
    given = place.url.query.get("options", "")
    options = f"{given} -c role={place.owner}".strip()
    url = place.url.update_query_dict({"options": options})
    database = Database(url.render_as_string(hide_password=False))
    try:
        await database.start()
        return await migrate(database, place.service)
    finally:
        await database.stop()


def _allow_rows(connection: psycopg.Connection[Any], place: Place) -> None:
    everything = "ALL TABLES IN SCHEMA public"
    _run(connection, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {everything} TO {{login}}", place)
    _run(connection, "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {login}", place)
    if _has(connection, "SELECT to_regclass(%s)", f"public.{TABLE_NAME}"):
        _run(connection, f"REVOKE UPDATE, DELETE ON public.{TABLE_NAME} FROM {{login}}", place)


def _in_transaction(place: Place, work: Callable[[psycopg.Connection[Any], Place], None]) -> None:
    with _connected(place.url) as connection, connection.transaction():
        work(connection, place)


def _connected(url: URL) -> psycopg.Connection[Any]:
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(address, autocommit=True, connect_timeout=_CONNECT_S)


def _run(connection: psycopg.Connection[Any], statement: str, place: Place) -> None:
    names = {"login": sql.Identifier(place.login), "owner": sql.Identifier(place.owner)}
    connection.execute(sql.SQL(statement).format(**names))


def _has(connection: psycopg.Connection[Any], query: str, value: str) -> bool:
    row = connection.execute(query, (value,)).fetchone()
    return row is not None and row[0] is not None


def _quoted(name: str) -> str:
    return f'"{name}"'


def main() -> None:
    """Exit status: 0 all is there, 1 it could not be made, 2 wrong settings."""
    parser = argparse.ArgumentParser(prog=f"python -m {_PROGRAM}", description=__doc__)
    parser.add_argument("logins", type=Path, help="what `python -m sql_store.logins FOLDER` wrote")
    arguments = parser.parse_args()
    try:
        reached = asyncio.run(provision(_settings(), read_logins(arguments.logins)))
    except SettingsError as error:
        print(error, file=sys.stderr)
        raise SystemExit(EXIT_SETTINGS) from None
    except (psycopg.Error, MigrationFailed, SqlPasswordRefused, Unavailable) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    for service, version in reached.items():
        print(f"tables of {service} at {version}, for its login alone", file=sys.stderr)


def _settings() -> SqlSettings:
    """Raises SettingsError."""
    settings = load_settings(SqlSettings, program=_PROGRAM)
    url = settings.url.get_secret_value()
    if not url.startswith("postgres") or SERVICE_IN_URL not in url:
        said = f"UPCYCLE_SQL_URL must name a Postgres, its superuser, and {SERVICE_IN_URL} as the database"
        raise SettingsError(_PROGRAM, [said])
    return settings


if __name__ == "__main__":
    main()
