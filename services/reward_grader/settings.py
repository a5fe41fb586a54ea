"""Settings of the reward grader."""

from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import SettingsConfigDict

from service_kit.groups import BusSettings, S3Settings
from service_kit.settings import ServiceSettings


class ExtraGraderSettings(BaseModel):
    """One grader beside the environment's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(pattern=r"^[\w.]+:\w+$")
    """`package.module:function`; takes a reward_grader.domain.GraderTranscript, gives 0..1, may be async."""
    weight: float = Field(gt=0, allow_inf_nan=False)
    name: str = ""
    """Name in the reward tree; empty: the function's."""


class RewardGraderSettings(ServiceSettings):
    """Has each recorded trajectory graded by its own environment, once, and publishes the reward."""

    model_config = SettingsConfigDict(env_prefix="REWARD_GRADER_")

    http_port: int = Field(7204, ge=0, le=65535)
    """Port of /livez, /readyz and /metrics; 0 lets the system choose."""
    slots: int = Field(48, ge=1, le=4096)
    """Trajectories graded at once."""
    grade_timeout_s: float = Field(60.0, gt=0)
    """Longest call of an environment's grader."""
    gone_after_s: float = Field(60.0, gt=0)
    """How long after its record an unreachable environment counts as lost."""
    environment_weight: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Weight of the environment's own reward where extra graders are set."""
    extra_graders: tuple[ExtraGraderSettings, ...] = ()
    """Graders beside the environment's, as JSON: [{"path": "package.module:function", "weight": 0.5}]."""
    extra_timeout_s: float = Field(30.0, gt=0)
    """Longest call of an extra grader."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
