"""Settings of the trainer; read by app.py only."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from service_kit.groups import (
    BusSettings,
    PeerSettings,
    S3Settings,
    ServerAccessSettings,
    WriterSigningSettings,
)
from service_kit.settings import ServiceSettings


class GrpoTrainerSettings(ServiceSettings):
    """Assembles graded trajectories into groups, trains on them online, and publishes policy versions."""

    model_config = SettingsConfigDict(env_prefix="GRPO_TRAINER_")

    http_port: int = Field(7206, ge=0, le=65535)
    """Port of /livez, /readyz and /metrics; 0 lets the system choose."""
    grpc_port: int = Field(7106, ge=0, le=65535)
    """Port of TrainingService; 0 lets the system choose."""
    device: str = "cpu"
    """Torch device that trains: cpu, cuda or cuda:N. A device that the machine lacks ends the process."""
    num_threads: int = Field(2, ge=1, le=256)
    """Threads that torch uses on a CPU."""
    microbatch_tokens: int = Field(8192, ge=1)
    """Unique tokens of one forward and backward pass; bounds memory, changes no gradient."""
    share_prefixes: bool = True
    """Compute tokens that members of a group have in common once."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the layers' arithmetic. Parameters, optimizer, output head and losses are float32 either way."""
    gradient_checkpointing: bool = False
    """Keep one activation per layer, compute the rest again: less memory, a seventh to a third more time."""
    compile_layers: bool = False
    """Compile each layer (torch.compile). The first steps take minutes; needs one rank."""
    attention: Literal["auto", "buckets", "flex"] = "auto"
    """Kernel of packed attention; auto: flex attention in bf16 on GPUs that have it, else fused buckets."""
    ranks: int = Field(1, ge=1, le=64)
    """Processes that share every step (FSDP2); this one starts the others on its own machine."""
    rank_deadline_s: float = Field(600.0, gt=0)
    """How long one rank waits for another before the process gives up and ends."""
    rank_variables: tuple[str, ...] = ()
    """Names of variables that the other ranks get, as JSON list, beside those that torch and CUDA read."""
    step_deadline_s: float = Field(3600.0, gt=0)
    """How long one step, or a load of a model, may compute. After it the process leaves by force and another
    trainer takes its models; above RANK_DEADLINE_S, where there are ranks."""
    train_parse_errors: bool = False
    """Train the tokens of turns that could not be read like any others; by default such a turn trains where
    its credit is negative, and is masked where it is not."""
    lease_s: float = Field(8.0, ge=1, le=60)
    """Seconds without a sign of life after which other trainers take the models of this one."""
    max_models: int = Field(64, ge=1)
    """Models that this process takes at once, with all of their runs; other trainers take the rest."""
    advertised_address: str = ""
    """Where other processes reach this one's TrainingService, host:port; default: the server's."""
    keep_states: int = Field(2, ge=1)
    """Newest training states kept per run, beside those that a checkpoint names."""
    max_open_models: int = Field(4, ge=1)
    """Models that stay in memory between interactive calls; when more are open, idle ones are closed."""
    gradients_kept_s: float = Field(3600.0, gt=0)
    """How long accumulated gradients wait for another call about their interactive model. After it they are
    dropped, and the model may be closed as any other."""
    spot_grace_s: float = Field(30.0, gt=0)
    """Seconds in which the process leaves after SIGTERM, or after SIGUSR1, a spot machine's notice. A step
    that is not durable after half of it is abandoned, and taken again wherever the run resumes."""
    alarm_updates: int = Field(8, ge=1, le=10_000)
    """Updates in a row, or averaged over, before an alarm is raised."""
    alarm_mismatch_kl: float = Field(0.1, gt=0, allow_inf_nan=False)
    """Divergence of sampler and trainer, nats per token, above which `mismatch_kl` is raised."""
    alarm_entropy_share: float = Field(0.05, ge=0, le=1)
    """Share of the entropy that the run's decisions had in its first step below which `entropy_collapse` is
    raised."""
    alarm_no_eos: float = Field(0.05, ge=0, le=1)
    """Share of trajectories cut off by a budget of tokens or turns above which `no_eos` is raised; 1 never
    raises it."""
    alarm_unreadable: float = Field(0.1, ge=0, le=1)
    """Share of turns that could not be read above which `unreadable` is raised; 1 never raises it."""
    alarm_age: float = Field(2.0, ge=1, allow_inf_nan=False)
    """Mean age of what trains, in units of `max_staleness` + 1 versions, above which `age` is raised."""
    data_dir: Path = Path(".upcycle/data/grpo_trainer")
    """Folder for fetched policies and for files on their way to the object store."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
    signing: WriterSigningSettings = Field(default_factory=WriterSigningSettings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
    access: ServerAccessSettings = Field(default_factory=ServerAccessSettings)

    @model_validator(mode="after")
    def _a_rank_is_given_up_before_the_step(self) -> Self:
        if self.ranks > 1 and self.step_deadline_s <= self.rank_deadline_s:
            raise ValueError(
                f"GRPO_TRAINER_STEP_DEADLINE_S {self.step_deadline_s:g} must be more than "
                f"GRPO_TRAINER_RANK_DEADLINE_S {self.rank_deadline_s:g}: a step waits for ranks"
            )
        return self
