"""Settings of the checkpoint registry; read by app.py only."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from service_kit.groups import (
    BusSettings,
    PeerSettings,
    S3Settings,
    ServerAccessSettings,
    SqlSettings,
    WriterSigningSettings,
)
from service_kit.settings import ServiceSettings


class CheckpointRegistrySettings(ServiceSettings):
    """Models, checkpoint trees and heads, the promotion gate, and the leases that engines are found by."""

    model_config = SettingsConfigDict(env_prefix="CHECKPOINT_REGISTRY_")

    grpc_port: int = Field(7107, ge=0, le=65535)
    """Port of RegistryService; 0 lets the system choose."""
    staging_dir: Path | None = None
    """Folder for imports on their way to the object store; unset: `import` beside the SQLite file."""
    max_import_bytes: int = Field(4 << 30, gt=0)
    """Largest policy that ImportModel takes, in bytes."""
    gate_poll_s: float = Field(2.0, gt=0, le=60)
    """How often the gate looks at evaluations under way, in case an event was lost."""
    gate_max_tries: int = Field(3, ge=1)
    """Runs of candidate and head that may fail in a row before the gate holds the candidate."""
    gate_first_retry_s: float = Field(2.0, gt=0)
    """Seconds before the second try of an evaluation; doubles per try."""
    gate_evaluation_s: float = Field(6 * 3600.0, gt=0)
    """Seconds after which an evaluation that is not over is cancelled; it counts as a failed try."""
    auto_rollback: bool = True
    """Take head back when a later evaluation shows that it is worse than the head before it."""
    rollback_confidence: float = Field(0.99, gt=0.5, lt=1)
    """One-sided confidence that such a rollback needs."""
    watch_pairs: int = Field(1000, ge=0)
    """Pairs that head and its predecessor play after head moved forward, to see if it is worse; 0: none."""
    watch_in_flight: int = Field(8, ge=2)
    """Episodes of a watch in flight at once; 2 while a training run of the model samples."""
    watch_trickle_s: float = Field(3600.0, ge=0)
    """Seconds between further runs of 50 pairs, once WATCH_PAIRS were played; 0: no further ones."""
    watch_sessions_every_s: float = Field(10.0, ge=0, le=3600)
    """Seconds between two looks at the graded sessions of canary releases; 0: they decide nothing."""
    watch_sessions_share: float = Field(0.0, ge=0, lt=1)
    """Share of a model's conversations that the predecessor of a new head answers, for its sessions to be
    compared with those of head; 0: only operators begin canary releases."""
    watch_sessions_pairs: int = Field(2000, ge=1)
    """Pairs of sessions after which such a release ends where they decided nothing."""
    retention_every_s: float = Field(300.0, ge=0)
    """How often published versions that are no longer needed are removed, in seconds; 0: never."""
    retention_keep_versions: int = Field(8, ge=2)
    """Newest versions of a model that stay, beside checkpoints and what engines and runs need."""
    retention_min_age_s: float = Field(3600.0, ge=0)
    """How long every published version stays, in seconds."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
    signing: WriterSigningSettings = Field(default_factory=WriterSigningSettings)
    sql: SqlSettings = Field(default_factory=SqlSettings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
    access: ServerAccessSettings = Field(default_factory=ServerAccessSettings)
