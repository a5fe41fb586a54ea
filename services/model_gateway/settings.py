"""Settings of the model gateway; read by app.py and cli.py only."""

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from service_kit.groups import BusSettings, PeerSettings, S3Settings, SqlSettings
from service_kit.settings import ServiceSettings


class ModelGatewaySettings(ServiceSettings):
    """Serves head of each model over the OpenAI API.

    `upcycle-model-gateway create-key --name NAME [--models a,b] [--scopes inference,admin]` makes an API key,
    `list-keys` lists them, `revoke-key ID` revokes one.
    """

    model_config = SettingsConfigDict(env_prefix="MODEL_GATEWAY_")

    public_host: str = "127.0.0.1"
    """Address on which the OpenAI API listens."""
    public_port: int = Field(7180, ge=0, le=65535)
    """Port of the OpenAI API; 0 lets the system choose."""
    bootstrap_key: SecretStr | None = None
    """A key (up_<id>_<secret>) that exists from the start, with all scopes."""
    bootstrap_key_file: Path | None = None
    """File with such a key; made with a fresh one (mode 0600) when it is not there."""
    max_body_bytes: int = Field(8 << 20, gt=0)
    """Largest request body."""
    max_n: int = Field(64, ge=1)
    """Most choices per request."""
    max_tokens: int = Field(131_072, ge=1)
    """Largest max_tokens that a request may ask for."""
    request_timeout_s: float = Field(600, gt=0)
    """Longest that a whole answer may take."""
    idle_timeout_s: float = Field(120, gt=0)
    """Silence of an engine in the middle of an answer after which it counts as lost."""
    engine_wait_s: float = Field(20, gt=0)
    """How long a request waits for an engine that is unavailable or reloading, all tries together."""
    engine_suspect_s: float = Field(1.0, gt=0)
    """How long an engine that just failed is avoided, unless its engine supervisor renews the lease."""
    poll_s: float = Field(2.0, gt=0, le=60)
    """How often the registry is asked for models and engines, in seconds; events make the gateway ask at
    once.
    """
    capture_fraction: float = Field(0.0, ge=0, le=1)
    """Share of requests whose exchange is kept in the object store; 0 keeps none."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
    sql: SqlSettings = Field(default_factory=SqlSettings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
