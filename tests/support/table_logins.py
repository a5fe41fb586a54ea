"""What a service may not do at Postgres with the login that it has: databases, and statements in its own.

Run in a container, with its own Python and login, it prints {attack: what came of it}.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import make_conninfo

OTHERS = (
    "scenario_runner", "trajectory_store", "checkpoint_registry", "model_gateway", "upcycle", "postgres",
    "template1",
)  # fmt: skip
"""Databases of the server, of which a login opens one."""
STATEMENTS = (
    "CREATE TABLE intruder (id int)",
    "CREATE TEMPORARY TABLE intruder (id int)",
    "CREATE SCHEMA intruder",
    "CREATE FUNCTION intruder() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE DATABASE intruder",
    "CREATE ROLE intruder",
    "ALTER ROLE CURRENT_USER SUPERUSER",
    "ALTER ROLE CURRENT_USER CREATEROLE",
    "ALTER ROLE {other} PASSWORD 'intruder'",
    "GRANT {other} TO CURRENT_USER",
    "SET ROLE upcycle",
    "SET ROLE {own}_owner",
    "SET ROLE {other}",
    "SET SESSION AUTHORIZATION upcycle",
    "SET session_replication_role = replica",
    "DROP TABLE {own}_version",
    "TRUNCATE {own}_version",
    "ALTER TABLE {own}_version ADD COLUMN intruder int",
    "ALTER TABLE {own}_version OWNER TO CURRENT_USER",
    "CREATE TRIGGER x AFTER INSERT ON {own}_version EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "DROP DATABASE {own}",
    "ALTER DATABASE {own} SET statement_timeout = 1",
    "COPY {own}_version TO PROGRAM 'cat'",
    "COPY {own}_version FROM '/etc/passwd'",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT rolpassword FROM pg_authid",
    "SELECT pg_reload_conf()",
    "ALTER SYSTEM SET fsync = off",
    "CHECKPOINT",
)
"""With {own}, the login's name and that of its database, and {other}, another one."""
OF_THE_LOG = (
    "UPDATE audit_entry SET who = 'somebody else'",
    "DELETE FROM audit_entry",
    "TRUNCATE audit_entry",
    "DROP TABLE audit_entry",
    "ALTER TABLE audit_entry DISABLE TRIGGER USER",
    "DROP TRIGGER audit_entry_refuses_change ON audit_entry",
    "DROP FUNCTION audit_entry_refuses() CASCADE",
    "CREATE OR REPLACE FUNCTION audit_entry_refuses() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
    "ALTER TABLE audit_entry RENAME TO forgotten",
)
"""Where the service has an audit log."""
KEEP_A_LOG = ("scenario_runner", "checkpoint_registry")


def attempts(own: str, password: str, host: str, port: int) -> Iterator[tuple[str, str]]:
    """(attack, what came of it): with its own password at all databases, then by statements in its own.
    `refused` is what it should be."""
    address = make_conninfo(host=host, port=port, connect_timeout=10)
    for database in OTHERS:
        if database != own:
            yield f"opens {database}", _opens(address, own, password, database)
    for user in (*OTHERS[:4], f"{own}_owner"):
        if user != own:
            yield f"logs in as {user}", _opens(address, user, password, own)
    other = next(one for one in OTHERS if one != own)
    statements = (*STATEMENTS, *(OF_THE_LOG if own in KEEP_A_LOG else ()))
    with psycopg.connect(address, user=own, password=password, dbname=own, autocommit=True) as connection:
        for statement in statements:
            said = statement.format(own=own, other=other)
            yield said, _runs(connection, said)


def _opens(address: str, user: str, password: str, database: str) -> str:
    try:
        psycopg.connect(address, user=user, password=password, dbname=database).close()
    except psycopg.OperationalError:
        return "refused"
    return "opened"


def _runs(connection: psycopg.Connection[Any], statement: str) -> str:
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        return "refused"
    except psycopg.Error as error:
        return str(error)
    return "done"


def main() -> None:
    """With the login of this container."""
    url = urlsplit(os.environ["UPCYCLE_SQL_URL"])
    password = Path(os.environ["UPCYCLE_SQL_PASSWORD_FILE"]).read_text().strip()
    print(json.dumps(dict(attempts(str(url.username), password, str(url.hostname), url.port or 5432))))


if __name__ == "__main__":
    main()
