"""Settings of the scenario runner."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from service_kit.groups import BusSettings, PeerSettings, S3Settings, ServerAccessSettings, SqlSettings
from service_kit.settings import ServiceSettings

NAME: Final = "scenario_runner"
_MIB = 1 << 20


class ScenarioRunnerSettings(ServiceSettings):
    """Plans runs over tasksets, and hosts the isolated environments in which their episodes play."""

    model_config = SettingsConfigDict(env_prefix="SCENARIO_RUNNER_")

    role: Literal["both", "planner", "fleet"] = "both"
    """planner: TasksetService and planning. fleet: EnvironmentService. Both need the same database."""
    grpc_port: int = Field(7101, ge=0, le=65535)
    """Port of TasksetService and EnvironmentService; 0 lets the system choose."""
    http_port: int = Field(7201, ge=0, le=65535)
    """Port of /livez, /readyz and /metrics; 0 lets the system choose."""
    advertised_address: str = ""
    """host:port at which samplers and graders reach this fleet replica; empty: host and grpc_port."""
    environment_roots: tuple[Path, ...] = (Path(),)
    """Folders under which environment files must lie, as JSON list; the default is the working directory."""
    allow_tcp: bool = True
    """Accept tasksets whose environment is served elsewhere on the control channel."""
    max_environments: int = Field(1024, ge=1, le=100_000)
    """Environment processes alive at once on this replica; above it, Open answers RESOURCE_EXHAUSTED."""
    lease_s: float = Field(180.0, gt=0)
    """Seconds that an opened environment is kept for its sampler and grader, at least."""
    start_timeout_s: float = Field(30.0, gt=0)
    """Seconds that a scenario may take to its first yield."""
    tool_timeout_s: float = Field(30.0, gt=0)
    """Seconds that one tool call may take."""
    grade_timeout_s: float = Field(50.0, gt=0)
    """Seconds that a scenario may take to its second yield."""
    import_timeout_s: float = Field(60.0, gt=0)
    """Seconds that an environment file may take to import."""
    tool_result_bytes: int = Field(256 * 1024, ge=1024, le=8 * _MIB)
    """Longest tool result in bytes; what is longer is cut, with a note."""
    memory_bytes: int = Field(2048 * _MIB, ge=0)
    """Address space of one environment process; 0 unbounded."""
    file_bytes: int = Field(64 * _MIB, ge=0)
    """Largest file that one environment process may write; 0 unbounded."""
    cpu_s: int = Field(120, ge=0)
    """Processor seconds of one environment process; 0 unbounded."""
    extra_processes: int = Field(64, ge=1)
    """Processes that environments may start in all, beside themselves. Root is not bound by it: see uid."""
    uid: int = Field(0, ge=0)
    """Unprivileged user id that environment processes become (the runner must be root); 0 keeps its own."""
    environment_variables: tuple[str, ...] = ()
    """Names of variables passed on to environments, as JSON list; all others are scrubbed."""
    cell: Literal["enforced", "best_effort", "off"] = "enforced"
    """What holds environments in their cells. enforced: deployed ones play only where the kernel holds all of
    it (Linux 6.12), those registered from a path in what it holds. best_effort: both in what it holds.
    off: files, ports and signals are not held back."""
    cell_files: tuple[Path, ...] = ()
    """Files and folders that environments may read beside their own and the system's, as JSON list."""
    cell_folders: tuple[Path, ...] = ()
    """The same that they may write, too; all episodes share them."""
    cell_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] | None = None
    """TCP ports that environments may connect to and serve, on any host, as JSON list; 53 lets them resolve
    names, too. Unset: none for deployed ones, all for those registered from a path."""
    cell_hidden: tuple[Path, ...] = ()
    """What no environment may read, as JSON list, even if it lies in one of those folders; this service's
    SQLite files are among it."""
    secrets_key_file: Path | None = None
    """File with 32 bytes in base64, open to its user alone (a group may read it): encrypts what `upcycle set
    secret` stores (docs/do/secrets.md). Planner and fleet need the same. Unset: no secrets are kept."""
    secrets_old_key_files: tuple[Path, ...] = ()
    """Files with keys that were used before, as JSON list: what they encrypted is read, and nothing is
    encrypted with them. `upcycle set secret --rotate` makes them needless."""
    eval_episodes_in_flight: int = Field(256, ge=1)
    """Episodes of one evaluation run that may be in flight."""
    max_audits: int = Field(20, ge=1)
    """Runs on one taskset of split audit: what is looked at more often selects, and audits nothing."""
    sessions_every_s: float = Field(2.0, gt=0)
    """Seconds between two looks for recorded sessions, for runs that take them as they are graded."""
    sessions_gather_s: float = Field(60.0, ge=0)
    """Seconds after the first reward of a group of them in which the group waits for more sessions, unless it
    has as many as the run's group size. At most half of the run's sessions_idle_s."""
    stop_grace_s: float = Field(600.0, gt=0)
    """How long graded episodes of a run that ends early wait for its trainer to settle them."""
    cancel_grace_s: float = Field(60.0, gt=0)
    """The same for a run that was cancelled or failed. After it the planner settles these episodes itself."""
    settle_deadline_s: float = Field(60.0, gt=0)
    """How long a complete group may be unsettled before it is announced again to a trainer that lacks it."""
    engine_price: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Price of one engine per hour, for the cost of runs (docs/do/size.md); 0 is not counted."""
    trainer_price: float = Field(0.0, ge=0, allow_inf_nan=False)
    """The same of one rank of the trainer."""
    environment_price: float = Field(0.0, ge=0, allow_inf_nan=False)
    """The same of one environment: the price of a core, divided by the environments that it holds."""
    retention_runs_days: float | None = Field(None, ge=1, allow_inf_nan=False)
    """Age after which groups and episodes of runs that are over and needed by nothing are removed, in days;
    the runs stay, with their totals. Unset: never."""
    retention_sources_days: float | None = Field(None, ge=1, allow_inf_nan=False)
    """Age after which packed sources of environments that no run and no taskset refers to are removed, in
    days since they were packed last. Unset: never."""
    retention_every_s: float = Field(3600.0, ge=0, allow_inf_nan=False)
    """How often that is done, in seconds; 0: only by `upcycle retention`."""
    bus: BusSettings = Field(default_factory=BusSettings)
    s3: S3Settings = Field(default_factory=S3Settings)
    sql: SqlSettings = Field(default_factory=SqlSettings)
    peers: PeerSettings = Field(default_factory=PeerSettings)
    access: ServerAccessSettings = Field(default_factory=ServerAccessSettings)

    @model_validator(mode="after")
    def _roles_share_a_server_database(self) -> Self:
        if self.role != "both" and not self.sql.url.get_secret_value().startswith("postgres"):
            raise ValueError(
                f"SCENARIO_RUNNER_ROLE={self.role} needs UPCYCLE_SQL_URL=postgresql://…: "
                "planner and fleet share it from two processes, and a SQLite file belongs to one"
            )
        return self

    @model_validator(mode="after")
    def _a_lease_outlasts_its_grade(self) -> Self:
        if self.lease_s <= self.grade_timeout_s:
            raise ValueError(
                f"SCENARIO_RUNNER_LEASE_S={self.lease_s:g} must exceed "
                f"SCENARIO_RUNNER_GRADE_TIMEOUT_S={self.grade_timeout_s:g}: a lease would lapse in its grade"
            )
        return self
