"""Settings that several services share, each group under its own environment prefix.

Equal names mean equal things in every process of a stack, so one exported variable reaches all of them.
"""

from pathlib import Path
from typing import Final

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

SERVICE_IN_URL: Final = "{service}"
"""In a database URL: where the name of the service stands."""


class SettingsGroup(BaseSettings):
    """Base of the groups: frozen, without unknown fields, silent about values in errors."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True
    )


class BusSettings(SettingsGroup):
    """How to reach NATS."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_BUS_")

    url: str = "nats://127.0.0.1:4222"
    """NATS address, or several separated by commas; without credentials in it."""
    user: str | None = None
    """User name, when the server asks for one."""
    password: SecretStr | None = None
    """Password of the user."""
    episodes_kept: int = Field(0, ge=0)
    """For provisioning: episodes that the facts have room for, at 4,500 bytes each; 0: 1.2 million."""

    @field_validator("url")
    @classmethod
    def _is_nats(cls, url: str) -> str:
        for one in url.split(","):
            if not one.strip().startswith(("nats://", "tls://")):
                raise ValueError(f"must start with nats:// or tls://, got {one.strip()!r}")
            if "@" in one:
                raise ValueError("must not carry credentials; set UPCYCLE_BUS_USER and UPCYCLE_BUS_PASSWORD")
        return url

    @property
    def servers(self) -> list[str]:
        """The addresses of `url`, one by one."""
        return [one.strip() for one in self.url.split(",")]


class S3Settings(SettingsGroup):
    """How to reach the object store, any S3 that passes the contract suite of blob_store."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_S3_")

    endpoint: str = "127.0.0.1:8333"
    """host:port, without a scheme."""
    access_key: SecretStr = SecretStr("upcycle")
    """Access key id."""
    secret_key: SecretStr = SecretStr("upcycle-secret")
    """Secret key; the default is what `upcycle up` gives its own loopback-only store."""
    bucket: str = Field("upcycle", min_length=3, max_length=63)
    """Bucket that holds everything this deployment stores."""
    secure: bool = False
    """Speak https."""
    region: str = "us-east-1"
    """Region that requests are signed for."""
    part_bytes: int = Field(16 << 20, ge=5 << 20, le=5 << 30)
    """Larger files are uploaded in parts of so many bytes; a store takes at most 10,000 parts of a file."""

    @field_validator("endpoint")
    @classmethod
    def _is_host_and_port(cls, endpoint: str) -> str:
        if "://" in endpoint or "/" in endpoint:
            raise ValueError(
                f"must be host:port without a scheme, got {endpoint!r}; use UPCYCLE_S3_SECURE for https"
            )
        return endpoint


class PeerSettings(SettingsGroup):
    """Where the gRPC services (and the gateway) of this deployment listen, each host:port."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_PEERS_")

    tasksets: str = "127.0.0.1:7101"
    """TasksetService of scenario_runner."""
    environments: str = "127.0.0.1:7101"
    """EnvironmentService of scenario_runner."""
    trajectories: str = "127.0.0.1:7105"
    """TrajectoryService of trajectory_store."""
    training: str = "127.0.0.1:7106"
    """TrainingService of grpo_trainer."""
    registry: str = "127.0.0.1:7107"
    """RegistryService of checkpoint_registry."""
    gateway: str = "127.0.0.1:7180"
    """Public HTTP address of model_gateway."""


class SqlSettings(SettingsGroup):
    """Where a service keeps its tables."""

    model_config = SettingsConfigDict(env_prefix="UPCYCLE_SQL_")

    url: SecretStr = SecretStr("")
    """SQLAlchemy URL (may hold a password), with `{service}` where the service's name stands; empty: a SQLite
    file of the service under data_dir."""
    data_dir: Path = Path(".upcycle/data")
    """Folder of the SQLite files."""

    def url_for(self, service: str) -> str:
        """The URL to use for this service's own database."""
        if self.url.get_secret_value():
            return self.url.get_secret_value().replace(SERVICE_IN_URL, service)
        return f"sqlite:///{self.data_dir.absolute() / service}.sqlite"


SHARED_GROUPS: tuple[type[BaseSettings], ...] = (BusSettings, S3Settings, PeerSettings, SqlSettings)
"""Groups whose prefixes are checked in every service, whether it uses the group or not."""
