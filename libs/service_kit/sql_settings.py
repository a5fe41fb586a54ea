"""Where a service keeps its tables, and the password of its login there, from a file of its own."""

from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, urlsplit

from pydantic import SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from service_kit.errors import SqlPasswordRefused
from service_kit.private_files import read_private
from service_kit.settings_group import SettingsGroup

SERVICE_IN_URL: Final = "{service}"
"""In a database URL: where the name of the service stands."""


class SqlSettings(SettingsGroup):
    """Where a service keeps its tables."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_SQL_")

    url: SecretStr = SecretStr("")
    """SQLAlchemy URL (may hold a password), with `{service}` where the service's name stands; empty: a SQLite
    file of the service under data_dir."""
    password_file: Path | None = None
    """File with the password of the login that URL names, in place of one in URL; only its user may open it.
    `python -m sql_store.logins` makes one for each service."""
    data_dir: Path = Path(".upcycle/data")
    """Folder of the SQLite files."""

    @field_validator("password_file", mode="before")
    @classmethod
    def _names_a_file(cls, path: object) -> object:
        return None if path == "" else path

    @model_validator(mode="after")
    def _has_one_password(self) -> Self:
        if self.password_file is not None and not _takes_a_password(self.url.get_secret_value()):
            raise ValueError(
                "UPCYCLE_SQL_PASSWORD_FILE is for a UPCYCLE_SQL_URL that names a login and no password: "
                "postgresql://scenario_runner@db.example/scenario_runner"
            )
        return self

    def url_for(self, service: str) -> str:
        """The URL to use for this service's own database. Raises SqlPasswordRefused."""
        if not (url := self.url.get_secret_value().replace(SERVICE_IN_URL, service)):
            return f"sqlite:///{self.data_dir.absolute() / service}.sqlite"
        return url if self.password_file is None else _with_password(url, read_password(self.password_file))


def read_password(path: Path) -> str:
    """What the file's one line says. Raises SqlPasswordRefused."""
    data = read_private(path, "the password of Postgres", SqlPasswordRefused)
    try:
        password = data.decode().strip()
    except UnicodeDecodeError:
        password = ""
    if not password or "\n" in password:
        way_out = "python -m sql_store.logins makes one"
        raise SqlPasswordRefused(f"{path} holds no password in one line", way_out)
    return password


def _takes_a_password(url: str) -> bool:
    """Whether it names a login of a server, and no password."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return bool(user and at) and ":" not in user and parts.scheme.startswith("postgres")


def _with_password(url: str, password: str) -> str:
    """A URL that takes a password, with it."""
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()
