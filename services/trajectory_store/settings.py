"""Settings of the trajectory store."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from service_kit.groups import BusSettings, PeerSettings, S3Settings, ServerAccessSettings, SqlSettings
from service_kit.settings import ServiceSettings


class TrajectoryStoreSettings(ServiceSettings):
    """Keeps the index of everything that was sampled, and the ledger of where each episode ended."""

    model_config = SettingsConfigDict(env_prefix="TRAJECTORY_STORE_")

    http_port: int = Field(7205, ge=0, le=65535)
    """Port of /livez, /readyz and /metrics; 0 lets the system choose."""
    grpc_port: int = Field(7105, ge=0, le=65535)
    """Port of TrajectoryService; 0 lets the system choose."""
    batch_size: int = Field(200, ge=1, le=1000)
    """Facts folded in one transaction at most."""
    check_bodies: bool = True
    """Look at each recorded body once, and quarantine those that cannot be used."""
    check_idle_s: float = Field(2.0, gt=0)
    """Pause between looks when there was nothing left to check."""
    monitor_rewards: bool = True
    """Show each ended episode to the monitors of reward hacks; an open alarm holds promotions of its run."""
    monitor_idle_s: float = Field(2.0, gt=0)
    """Pause of the monitors when nothing was new, in seconds; a change in this process wakes them at once."""
    quarantine_hacks: bool = True
    """Set aside each trajectory that a monitor of reward hacks is sure of: it does not train."""
    export_page: int = Field(32, ge=1, le=1000)
    """Bodies that an export holds in memory at once."""
    export_parallel_reads: int = Field(8, ge=1, le=64)
    """Bodies that an export reads at once."""
    watch_poll_s: float = Field(1.0, gt=0)
    """How soon a watcher sees changes that another replica made."""
    retention_bodies_days: float | None = Field(None, ge=1, allow_inf_nan=False)
    """Age after which bodies that nothing refers to are removed, in days; unset: never."""
    retention_bodies_bytes: int | None = Field(None, gt=0)
    """Size of all bodies beyond which the oldest that nothing refers to are removed, once a day old, in
    bytes; unset: any size."""
    retention_episodes_days: float | None = Field(None, ge=1, allow_inf_nan=False)
    """Age after which rows of episodes without a body are removed, in days; the counts of their runs stay.
    Unset: never."""
    retention_every_s: float = Field(3600.0, ge=0, allow_inf_nan=False)
    """How often what the settings above name is removed, in seconds; 0: only by `upcycle retention`."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
    sql: SqlSettings = Field(default_factory=SqlSettings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
    access: ServerAccessSettings = Field(default_factory=ServerAccessSettings)
