"""How large: what a training run needs, from figures measured by `make bench` and stated formulas. Pure.

Each line says whether its value was measured (in benchmarks/README.md, on the machine named there) or
computed, and how. Computed values are estimates: they leave out attention over long contexts and waiting.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

GIB: Final = 1 << 30
MIB: Final = 1 << 20
FLOAT32_BYTES: Final = 4
DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2}

Dtype = Literal["float32", "bfloat16"]
Basis = Literal["measured", "computed"]


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of benchmarks/README.md: machine with 2 cores, policies of 0.7 million parameters."""

    cores: int = 2
    environments_alive: int = 2048
    environment_mib: float = 3.87
    environments_started_per_s: float = 260.0
    episodes_per_s: float = 50.5
    """Of the whole platform, with an engine and environments that do nothing."""
    engine_gflops: float = 17.9
    """Of one core: (10,197 new + 2,549 prompt tokens)/s × 2 × 703,232 parameters, 128 sequences at once."""
    trainer_gflops: float = 31.5
    """Of one core: 16,384 tokens in 0.973 s × 6 × 624,512 parameters, two cores, without shared prompts."""


MEASURED: Final = Measured()


@dataclass(frozen=True, slots=True)
class ModelShape:
    """parameters: all weights; trained: those that an optimizer updates (adapters: fewer)."""

    parameters: float
    trained: float
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    dtype: Dtype = "bfloat16"
    """In which engines hold the weights. Trainer and published files are float32."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One batch. tokens: sampled per episode; episode_s: an environment's life, from prompt to grade."""

    prompts: int
    group: int
    prompt_tokens: int
    tokens: int
    episode_s: float
    max_staleness: int = 4

    @property
    def episodes(self) -> int:
        """Of one batch."""
        return self.prompts * self.group

    @property
    def sampled_tokens(self) -> int:
        """Of one batch."""
        return self.episodes * self.tokens

    @property
    def computed_tokens(self) -> int:
        """Of one batch, each prompt once for its whole group."""
        return self.prompts * self.prompt_tokens + self.sampled_tokens


@dataclass(frozen=True, slots=True)
class Machines:
    """Devices, and the speed that one of them reaches in practice, not on paper."""

    engines: int = 1
    trainers: int = 1
    environment_cores: int = 1
    engine_gflops: float = MEASURED.engine_gflops
    trainer_gflops: float = MEASURED.trainer_gflops
    sequences: int = 128
    """That one engine samples at once."""
    microbatch_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Prices:
    """Per hour: of one engine device, one trainer device, one core for environments. 0: not counted."""

    engine: float = 0.0
    trainer: float = 0.0
    core: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """One figure. how: the benchmark that measured it, or the formula that computed it."""

    name: str
    value: float
    unit: str
    basis: Basis
    how: str


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long one batch occupies the engines, the trainer, the cores for environments, and the platform."""

    engine: float
    trainer: float
    environment: float
    platform: float

    @property
    def overlapped(self) -> float:
        """Of a batch where sampling goes on while the trainer computes: the slowest part."""
        return max(self.engine, self.trainer, self.environment, self.platform)

    @property
    def in_turn(self) -> float:
        """Of a batch where the trainer waits for sampling and sampling for the trainer."""
        return max(self.engine, self.environment, self.platform) + self.trainer


def environments_per_core(episode_s: float) -> float:
    """How many environments one core can run at once: as many as it can start within episode_s, and no more
    than were measured to run.
    """
    alive = MEASURED.environments_alive / MEASURED.cores
    return min(alive, MEASURED.environments_started_per_s / MEASURED.cores * episode_s)


def kv_bytes_per_token(model: ModelShape) -> int:
    """Keys and values of one token in all layers."""
    return 2 * model.layers * model.kv_heads * model.head_dim * DTYPE_BYTES[model.dtype]


def engine_bytes(model: ModelShape, work: Workload, machines: Machines) -> float:
    """Of one engine: weights, and keys and values of all sequences at full length."""
    context = work.prompt_tokens + work.tokens
    weights = model.parameters * DTYPE_BYTES[model.dtype]
    return weights + machines.sequences * context * kv_bytes_per_token(model)


def trainer_bytes(model: ModelShape, machines: Machines) -> float:
    """Of all trainer devices together: weights; gradient and two moments of what is trained; activations."""
    activations = machines.microbatch_tokens * model.layers * model.hidden * 17 * FLOAT32_BYTES
    return (model.parameters + 3 * model.trained) * FLOAT32_BYTES + activations


def state_bytes(model: ModelShape) -> float:
    """Of a training state: weights and two moments of what is trained."""
    return 3 * model.trained * FLOAT32_BYTES


def seconds_of_batch(model: ModelShape, work: Workload, machines: Machines) -> Seconds:
    """2 operations per parameter and token to sample, 6 to train."""
    giga_parameters = model.parameters / 1e9
    places = machines.environment_cores * environments_per_core(work.episode_s)
    sampling = 2 * giga_parameters * work.computed_tokens
    training = 6 * giga_parameters * work.computed_tokens
    return Seconds(
        engine=sampling / (machines.engine_gflops * machines.engines),
        trainer=training / (machines.trainer_gflops * machines.trainers),
        environment=work.episodes * work.episode_s / places,
        platform=work.episodes / MEASURED.episodes_per_s,
    )


def cost_of_batch(seconds: float, machines: Machines, prices: Prices) -> float:
    """Of all devices for as long as a batch takes: idle ones are paid for, too."""
    per_hour = (
        machines.engines * prices.engine
        + machines.trainers * prices.trainer
        + machines.environment_cores * prices.core
    )
    return per_hour * seconds / 3600


def size(model: ModelShape, work: Workload, machines: Machines, prices: Prices) -> list[Line]:
    """Every line of the answer, in the order in which it is read."""
    return [
        *_environment_lines(work),
        *_memory_lines(model, work, machines),
        *_byte_lines(model, work, machines),
        *_time_lines(model, work, machines, prices),
    ]


def _environment_lines(work: Workload) -> list[Line]:
    in_flight = work.episodes * (work.max_staleness + 1)
    per_core = environments_per_core(work.episode_s)
    alive = f"{MEASURED.environments_alive} on {MEASURED.cores} cores"
    return [
        Line(
            "memory of one environment",
            MEASURED.environment_mib,
            "MiB",
            "measured",
            "benchmarks environments",
        ),
        Line(
            "environments started per core",
            MEASURED.environments_started_per_s / MEASURED.cores,
            "/s",
            "measured",
            f"benchmarks environments, by {MEASURED.cores} cores",
        ),
        Line("environments per core", per_core, "", "computed", f"min({alive}, starts × episode seconds)"),
        Line(
            "episodes in flight, at most", in_flight, "", "computed", "prompts × group × (max staleness + 1)"
        ),
        Line(
            "cores for all of them", math.ceil(in_flight / per_core), "", "computed", "in flight / per core"
        ),
        Line(
            "their memory",
            in_flight * MEASURED.environment_mib * MIB / GIB,
            "GiB",
            "computed",
            "in flight × memory of one",
        ),
    ]


def _memory_lines(model: ModelShape, work: Workload, machines: Machines) -> list[Line]:
    weights = model.parameters * DTYPE_BYTES[model.dtype]
    both = f"weights + {machines.sequences} sequences × tokens × {kv_bytes_per_token(model):,} B"
    state = "4 B × (parameters + 3 × trained + 17 × layers × hidden × microbatch tokens)"
    return [
        Line("weights in an engine", weights / GIB, "GiB", "computed", f"parameters × {model.dtype}"),
        Line("memory of an engine", engine_bytes(model, work, machines) / GIB, "GiB", "computed", both),
        Line("memory of the trainer", trainer_bytes(model, machines) / GIB, "GiB", "computed", state),
        Line(
            "host copy of a training state",
            state_bytes(model) / GIB,
            "GiB",
            "computed",
            "4 B × 3 × trained: weights and two moments",
        ),
    ]


def _byte_lines(model: ModelShape, work: Workload, machines: Machines) -> list[Line]:
    published = model.parameters * FLOAT32_BYTES
    moved = published * (1 + machines.engines)
    return [
        Line(
            "a published version",
            published / GIB,
            "GiB",
            "computed",
            "4 B × parameters: published in float32",
        ),
        Line("moved per version", moved / GIB, "GiB", "computed", "stored once, fetched by each engine"),
        Line(
            "training state, stored per step",
            state_bytes(model) / GIB,
            "GiB",
            "computed",
            "4 B × 3 × trained",
        ),
        Line(
            "tokens and log-probabilities of a batch",
            8 * (work.sampled_tokens + work.episodes * work.prompt_tokens) / MIB,
            "MiB",
            "computed",
            "8 B × tokens, before compression and without texts",
        ),
    ]


def _time_lines(model: ModelShape, work: Workload, machines: Machines, prices: Prices) -> list[Line]:
    took = seconds_of_batch(model, work, machines)
    speeds = f"{machines.engine_gflops:g}, {machines.trainer_gflops:g} GFLOP/s"
    lines = [
        Line(
            "platform without work", MEASURED.episodes_per_s, "episodes/s", "measured", "benchmarks pipeline"
        ),
        Line("episodes of a batch", work.episodes, "", "computed", "prompts × group"),
        Line("engines, of a batch", took.engine, "s", "computed", f"2 × parameters × tokens; {speeds}"),
        Line("trainer, of a batch", took.trainer, "s", "computed", "6 × parameters × tokens, prompts shared"),
        Line("environments, of a batch", took.environment, "s", "computed", "episodes × seconds / places"),
        Line("platform, of a batch", took.platform, "s", "computed", "episodes / measured rate"),
        Line("a batch, side by side", took.overlapped, "s", "computed", "the slowest of the four"),
        Line(
            "a batch, in turn (staleness 0)", took.in_turn, "s", "computed", "slowest of sampling + trainer"
        ),
    ]
    cost = cost_of_batch(took.overlapped, machines, prices)
    if cost:
        lines.append(
            Line("cost of a batch", cost, "", "computed", "all devices × price × seconds side by side")
        )
        per_thousand = cost / work.episodes * 1000
        lines.append(Line("cost of 1,000 episodes", per_thousand, "", "computed", "cost / episodes × 1,000"))
    return lines
