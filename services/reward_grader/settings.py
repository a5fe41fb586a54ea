"""Settings of the reward grader."""

from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from event_bus.topology import REWARD_GRADER
from reward_grader.domain import ASKING_S
from service_kit.groups import BusSettings, PeerSettings, S3Settings, ServerAccessSettings
from service_kit.settings import ServiceSettings

_REST_S: Final = 30.0
"""Of a delivery: to read the body, and to publish the outcome."""


class ExtraGraderSettings(BaseModel):
    """One grader beside the environment's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(pattern=r"^[\w.]+:\w+$")
    """`package.module:function`; takes a reward_grader.domain.GraderTranscript, gives 0..1, may be async."""
    weight: float = Field(gt=0, allow_inf_nan=False)
    name: str = ""
    """Name in the reward tree; empty: the function's."""


def _is_address(url: str) -> str:
    if not url:
        return url
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"must be the http(s) address of an OpenAI API, such as https://host/v1, got {url!r}"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must have no credentials, query or fragment; the key is a setting of its own")
    return url.rstrip("/")


Address = Annotated[str, AfterValidator(_is_address)]


class JudgeSettings(BaseModel):
    """One model that scenarios may name as their judge."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(pattern=r"^(openai|gateway):\S+$")
    """As `LLMJudgeGrader(model=...)` writes it: `gateway:slug`, or `openai:URL#model`."""
    url: Address = Field(min_length=1)
    """Address of its OpenAI API, such as https://host/v1."""
    model: str = Field(min_length=1)
    """What the server calls it."""
    key: SecretStr = SecretStr("")
    """Sent to its server as bearer token, and to no other."""


class RewardGraderSettings(ServiceSettings):
    """Has each recorded trajectory graded by its own environment, once, and publishes the reward."""

    model_config = SettingsConfigDict(env_prefix="REWARD_GRADER_")

    grpc_port: int = Field(7108, ge=0, le=65535)
    """Port of GradingService; 0 lets the system choose."""
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
    judge_url: Address = ""
    """Address of the OpenAI API of the model that judges answers for `LLMJudgeGrader`: any server, or
    `http://gateway:7180/v1`. Unset: a scenario whose judge names no model is environment_broken."""
    judge_model: str = ""
    """What that server calls the model; at the gateway its slug."""
    judge_key: SecretStr = SecretStr("")
    """Sent to that server as bearer token, and to no other; no episode sees it."""
    judges: tuple[JudgeSettings, ...] = ()
    """Further judges, which scenarios name, as JSON: [{"name": "gateway:wise", "url": "http://gateway:7180/v1",
    "model": "wise", "key": "…"}]. A name that is not here is refused."""
    judge_timeout_s: float = Field(120.0, gt=0, le=800)
    """Longest answer of a judge, tries together; the environment waits so long for it."""
    judge_gone_after_s: float = Field(300.0, gt=0)
    """How long after its record a judge that does not answer is waited for. The episode is missing then, as
    external_failure."""
    judge_max_tokens: int = Field(4096, ge=64)
    """Longest answer of a judge, in tokens, its reasoning included."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
    access: ServerAccessSettings = Field(default_factory=ServerAccessSettings)

    @model_validator(mode="after")
    def _a_judge_has_an_address_and_a_model(self) -> Self:
        if bool(self.judge_url) != bool(self.judge_model):
            has, lacks = ("URL", "MODEL") if self.judge_url else ("MODEL", "URL")
            raise ValueError(f"REWARD_GRADER_JUDGE_{has} is set and REWARD_GRADER_JUDGE_{lacks} is not")
        if self.judge_key.get_secret_value() and not self.judge_url:
            raise ValueError("REWARD_GRADER_JUDGE_KEY is set and REWARD_GRADER_JUDGE_URL is not")
        names = [one.name for one in self.judges]
        if len(set(names)) != len(names):
            raise ValueError(f"REWARD_GRADER_JUDGES names {max(names, key=names.count)!r} twice")
        return self

    @model_validator(mode="after")
    def _one_delivery_ends_within_its_time(self) -> Self:
        """A delivery that takes longer counts as failed, and five of them make a dead letter."""
        longest = {"REWARD_GRADER_GRADE_TIMEOUT_S": self.grade_timeout_s}
        asking_s = 0.0
        if self.judges or self.judge_url:
            asking_s = ASKING_S
            longest["REWARD_GRADER_JUDGE_TIMEOUT_S"] = self.judge_timeout_s
        if self.extra_graders:
            longest["REWARD_GRADER_EXTRA_TIMEOUT_S"] = self.extra_timeout_s
        room_s = REWARD_GRADER.handler_timeout_s - asking_s - _REST_S
        if sum(longest.values()) > room_s:
            listed = " + ".join(f"{name} ({value:g})" for name, value in longest.items())
            asks = f", of which it asks judges for {asking_s:g} s" if asking_s else ""
            raise ValueError(
                f"{listed} is {sum(longest.values()):g} s, and one delivery of a record has {room_s:g} s for "
                f"them (it ends after {REWARD_GRADER.handler_timeout_s:g} s{asks}): lower one of them"
            )
        return self
