"""Where the parts of a platform are: its bus, its bucket, its databases."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from platform_backup.errors import BackupRefused
from service_kit.groups import SERVICE_IN_URL, BusSettings, S3Settings, SqlSettings
from service_kit.settings import load_settings
from sql_store.logins import SERVICES


@dataclass(frozen=True, slots=True)
class Places:
    """One platform, seen from outside. databases: service -> SQLAlchemy URL."""

    bus: BusSettings
    s3: S3Settings
    databases: Mapping[str, SecretStr]

    @classmethod
    def with_sqlite(cls, bus: BusSettings, s3: S3Settings, folder: Path) -> "Places":
        """A platform whose databases are SQLite files of a folder."""
        urls = {service: f"sqlite:///{folder.absolute() / service}.sqlite" for service in SERVICES}
        return cls(bus, s3, {service: SecretStr(url) for service, url in urls.items()})


def places_from_environment() -> Places | None:
    """What UPCYCLE_BUS_*, UPCYCLE_S3_* and UPCYCLE_SQL_* name; None without UPCYCLE_BUS_URL. Raises
    BackupRefused, SettingsError.
    """
    if "UPCYCLE_BUS_URL" not in os.environ:
        return None
    program = "upcycle backup"
    sql = load_settings(SqlSettings, program=program)
    url = sql.url.get_secret_value()
    if url and SERVICE_IN_URL not in url:
        raise BackupRefused(
            "UPCYCLE_SQL_URL names one database, and a platform has one for each service that keeps tables",
            f"write {SERVICE_IN_URL} where the name of the service stands, "
            f"as in postgresql://upcycle@host/{SERVICE_IN_URL}",
        )
    return Places(
        load_settings(BusSettings, program=program),
        load_settings(S3Settings, program=program),
        {service: SecretStr(sql.url_for(service)) for service in SERVICES},
    )
