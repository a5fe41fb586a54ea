"""Settings of the rollout sampler."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from service_kit.groups import AccessSettings, BusSettings, PeerSettings, S3Settings, SigningSettings
from service_kit.settings import ServiceSettings
from upcycle.run_config import MAX_EPISODE_DEADLINE_S


class RolloutSamplerSettings(ServiceSettings):
    """Plays episodes: opens the environment, lets the policy act in it turn by turn, stores what happened."""

    model_config = SettingsConfigDict(env_prefix="ROLLOUT_SAMPLER_")

    http_port: int = Field(7202, ge=0, le=65535)
    """Port of /livez, /readyz and /metrics; 0 lets the system choose."""
    train_slots: int = Field(48, ge=0, le=4096)
    """Episodes of training runs played at once; 0 takes none."""
    eval_slots: int = Field(32, ge=0, le=4096)
    """Episodes of evaluation runs played at once; 0 takes none."""
    episode_timeout_s: float = Field(MAX_EPISODE_DEADLINE_S, gt=0, le=MAX_EPISODE_DEADLINE_S)
    """Longest play of one episode, whatever its run allows; by default each run's own episode_deadline_s
    decides."""
    late_start_s: float = Field(30.0, gt=0)
    """Least time for an episode whose deadline is near or past when it starts; at most its run's
    episode_deadline_s."""
    retry_s: float = Field(30.0, gt=0)
    """Longest wait in the middle of an episode for an engine or the object store to come back."""
    turn_timeout_s: float = Field(60.0, gt=0)
    """Longest request to an engine."""
    tool_timeout_s: float = Field(60.0, gt=0)
    """Longest call of a tool."""
    open_timeout_s: float = Field(120.0, gt=0)
    """Longest start of an environment."""
    environment_retry_s: float = Field(10.0, gt=0)
    """How long a replica that holds a lease may be unreachable before the environment counts as lost."""
    engine_lease_age_s: float = Field(1.0, gt=0)
    """Age at which the cached list of engines is read again."""
    engine_look_s: float = Field(1.0, ge=0)
    """Seconds between two looks at the metrics of an engine that has requests of this sampler: while its
    queue is long, it gets fewer at once. 0: no look, and no limit."""
    max_tool_calls_per_turn: int = Field(16, ge=1)
    """Calls beyond this in one turn are refused."""
    max_tool_result_chars: int = Field(32_768, ge=256)
    """Longer tool results are cut, and say so."""
    cache_dir: Path = Path(".upcycle/cache/formats")
    """Folder of tokenizers and chat templates, shared by the samplers of one machine."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
    signing: SigningSettings = Field(default_factory=SigningSettings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)

    @model_validator(mode="after")
    def _has_work(self) -> Self:
        if self.train_slots + self.eval_slots == 0:
            raise ValueError(
                "ROLLOUT_SAMPLER_TRAIN_SLOTS and ROLLOUT_SAMPLER_EVAL_SLOTS are both 0: it would do nothing"
            )
        return self

    @model_validator(mode="after")
    def _late_start_fits(self) -> Self:
        if self.late_start_s > self.episode_timeout_s:
            raise ValueError(
                f"ROLLOUT_SAMPLER_LATE_START_S={self.late_start_s:g} must not exceed "
                f"ROLLOUT_SAMPLER_EPISODE_TIMEOUT_S={self.episode_timeout_s:g}"
            )
        return self
