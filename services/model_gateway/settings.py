"""Settings of the model gateway; read by app.py and cli.py only."""

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from service_kit.groups import AccessSettings, BusSettings, PeerSettings, S3Settings, SqlSettings
from service_kit.settings import ServiceSettings


class ModelGatewaySettings(ServiceSettings):
    """Serves head of each model over the OpenAI API.

    `upcycle-model-gateway create-key --name NAME [--models a,b] [--scopes inference,admin]` makes an API key,
    `list-keys` lists them, `revoke-key ID` revokes one, `set-capture ID on|off` says whether it may be
    captured, `set-limits ID [--cost-per-day 5]` what it may use."""

    model_config = SettingsConfigDict(env_prefix="MODEL_GATEWAY_")

    public_host: str = "127.0.0.1"
    """Address on which the OpenAI API listens."""
    public_port: int = Field(7180, ge=0, le=65535)
    """Port of the OpenAI API; 0 lets the system choose."""
    public_certificate: Path | None = None
    """Certificate of that port, followed by those between it and its CA, in PEM form: it speaks https only. A
    replaced file holds for new connections within 10 seconds."""
    public_certificate_key: Path | None = None
    """Private key of the certificate."""
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
    hold_s: float = Field(300.0, ge=0, le=86_400)
    """How long an engine keeps a version that a request asked for and no engine served (`incident@v12`, a new
    fork), after the last such request; 0: such requests are refused."""
    poll_s: float = Field(2.0, gt=0, le=60)
    """How often the registry is asked for models and engines, in seconds; events make the gateway ask at
    once.
    """
    session_idle_s: float = Field(3600, ge=1)
    """Seconds without a call after which a recorded session is closed: it becomes a trajectory, and takes no
    more calls. A reward closes it at once."""
    session_retention_days: float = Field(7, gt=0, le=3650)
    """Days after its last call in which a recorded session may get its reward; then it is settled as
    excluded(ungraded)."""
    session_max_calls: int = Field(1000, ge=1)
    """Calls that a recorded session records. Those beyond are answered and counted; the session is evaluated,
    and never trains."""
    session_max_bytes: int = Field(128 << 20, ge=1 << 20, le=1 << 30)
    """Bytes that the calls of a recorded session may take in the database until it is closed. Each has its
    whole prompt, as text and as tokens. What is beyond is treated as with SESSION_MAX_CALLS."""
    capture_fraction: float = Field(0.0, ge=0, le=1)
    """Share of the requests that is recorded, of those without a session whose key may be captured
    (`create-key --may-capture`, `set-capture ID on`); 0 captures none."""
    capture_redact: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """`package.module:function` that is given each captured call before anything of it is stored. It returns
    the call, changed or not, or None: then nothing is stored, as where it raises. It runs in a process of its
    own."""
    capture_redact_s: float = Field(1.0, gt=0, le=60)
    """Seconds that it may take for one call; then nothing of the call is stored."""
    providers_file: Path | None = None
    """JSON file of upstream providers: models of others that are asked for as `provider/name`, and which of
    them stands in for a registered model. Read at the start."""
    key_requests_per_minute: int | None = Field(None, ge=1)
    """Requests a minute of each key that has no limit of its own (`set-limits`); unset: no limit."""
    key_tokens_per_minute: int | None = Field(None, ge=1)
    """Tokens a minute, read and written, of each key that has no limit of its own; unset: no limit."""
    key_concurrency: int | None = Field(None, ge=1)
    """Requests at once of each key that has no limit of its own; unset: no limit."""
    key_cost_per_day: float | None = Field(None, gt=0)
    """What each key that has no limit of its own may spend a day (UTC), by the prices of the providers' file;
    unset: no limit."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
    sql: SqlSettings = Field(default_factory=SqlSettings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)

    @model_validator(mode="after")
    def _has_a_whole_certificate(self) -> Self:
        if (self.public_certificate is None) != (self.public_certificate_key is None):
            raise ValueError(
                "MODEL_GATEWAY_PUBLIC_CERTIFICATE and _PUBLIC_CERTIFICATE_KEY go together: set both or "
                "neither"
            )
        return self
