"""What a run is asked for with: one builder for the command line, standing runs and the SDK."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, Union, get_args, get_origin, get_type_hints

from upcycle.errors import UpcycleError
from upcycle.run_config import MAX_TRAINABLE_GROUP

if TYPE_CHECKING:
    from upcycle.api.common.v1.common_pb2 import PolicySelector
    from upcycle.api.taskset.v1.taskset_pb2 import GateConfig, RunSpec, SamplingConfig, TrainingConfig

DEFAULT_STEPS: Final = 100
_SAMPLING: Final = ("temperature", "max_turns", "max_tokens_per_turn", "max_tokens_per_episode")


class OptionInvalid(UpcycleError, ValueError):
    """An option of a training run is unknown, or its value is of another type."""

    kind = "option_invalid"


class CannotTrain(UpcycleError, ValueError):
    """Groups of this size never train: one has nothing to be compared with, and too many fit in no offer."""

    kind = "training_refused"


class SourcesRefused(UpcycleError, ValueError):
    """What was said about sources contradicts the rest, or names no evaluation that can train."""

    kind = "sources_refused"


class TrainKeywords(TypedDict, total=False):
    """The options of a training run as keywords of the SDK; TrainOptions says what each means."""

    steps: int
    group: int
    prompts: int
    learning_rate: float
    lr_schedule: str
    warmup_steps: int
    min_lr_fraction: float
    max_staleness: int
    checkpoint_every: int
    loss: str
    gate: str | None
    gate_attempts: int
    lora_rank: int
    seed: int
    no_step_groups: int | None
    temperature: float
    max_turns: int | None
    max_tokens_per_turn: int | None
    max_tokens_per_episode: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Of a training run: the flags of `upcycle train`, the keys of a standing run and the SDK's keywords."""

    group: int = 8
    """rollouts per task, at least 2."""
    prompts: int = 16
    """groups per optimizer step, each of one task."""
    learning_rate: float = 1e-5
    """of AdamW; with a schedule, its highest."""
    lr_schedule: str = "constant"
    """how the learning rate goes over the steps, after the warm-up: constant, linear or cosine; the last two
    need a limit of steps."""
    warmup_steps: int = 0
    """first steps, during which the learning rate rises evenly."""
    min_lr_fraction: float = 0.0
    """share of the learning rate towards which `linear` and `cosine` fall."""
    max_staleness: int = 4
    """the oldest policy, in versions, whose tokens are still trained."""
    checkpoint_every: int = 10
    """steps between checkpoints that ask to be promoted."""
    loss: str = "ppo"
    """name of the loss (`ppo`, `importance_sampling`, …)."""
    gate: str | None = None
    """held-out taskset that a checkpoint must prove itself on; without it nothing is promoted."""
    gate_attempts: int = 4
    """episodes per held-out task."""
    lora_rank: int = 0
    """train low-rank adapters of this rank instead of all weights; 0 trains all."""
    seed: int = 0
    """of task order and sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions(CommonOptions):
    """Everything that a training run can be told beside its model, its taskset and its sources."""

    steps: int = DEFAULT_STEPS
    """optimizer steps; 0: until the run is stopped."""
    no_sampling: bool = False
    """plan no episodes: train only on what evaluations bring."""
    no_step_groups: int | None = None
    """groups in a row without a step after which the run fails; None: max(8 x prompts, 64)."""
    temperature: float = 1.0
    """of sampling."""
    max_turns: int | None = None
    """turns per episode; None: the platform's default."""
    max_tokens_per_turn: int | None = None
    """sampled tokens per turn; None: the platform's default."""
    max_tokens_per_episode: int | None = None
    """sampled tokens per episode; None: the platform's default."""

    def training(self) -> "TrainingConfig":
        """What the trainer and the planner are asked for."""
        from upcycle.api.taskset.v1.taskset_pb2 import TrainingConfig

        return TrainingConfig(
            steps=self.steps,
            prompts_per_step=self.prompts,
            max_staleness=self.max_staleness,
            learning_rate=self.learning_rate,
            lr_schedule=self.lr_schedule,
            warmup_steps=self.warmup_steps,
            min_lr_fraction=self.min_lr_fraction,
            checkpoint_every_steps=self.checkpoint_every,
            loss=self.loss,
            lora_rank=self.lora_rank,
            seed=self.seed,
            no_step_groups=self.no_step_groups,
        )

    def gate_config(self) -> "GateConfig | None":
        """What a checkpoint must show; None where nothing is promoted."""
        from upcycle.api.taskset.v1.taskset_pb2 import GateConfig

        return GateConfig(taskset=self.gate, attempts=self.gate_attempts) if self.gate else None

    def sampling(self) -> "SamplingConfig":
        """How the run's own episodes are sampled."""
        from upcycle.api.taskset.v1.taskset_pb2 import SamplingConfig

        return SamplingConfig(**{name: getattr(self, name) for name in _SAMPLING})

    def spec(self, model: str, taskset: str, sources: Sequence[str] = ()) -> "RunSpec":
        """The training run of `model` over `taskset`. sources: run ids of finished evaluations."""
        spec = train_spec(taskset, model, self.group, self.training(), self.gate_config())
        spec.sampling.CopyFrom(self.sampling())
        spec.source_runs.extend(sources)
        spec.no_sampling = self.no_sampling
        return spec


class PolicyChoice(Protocol):
    """Which policy plays, and how it is sampled: `upcycle.agents.Agent`."""

    @property
    def model(self) -> str: ...
    @property
    def version(self) -> int | None: ...
    @property
    def sampling(self) -> Mapping[str, Any]: ...


def check_trainable_group(group: int) -> None:
    """Raises CannotTrain for groups that no training run can draw."""
    if not 2 <= group <= MAX_TRAINABLE_GROUP:
        raise CannotTrain(
            f"trainable with group {group}: rewards are compared within a group, which trains as a whole",
            f"use a group of 2 to {MAX_TRAINABLE_GROUP}; 8 is a good start",
        )


def select_policy(
    model: str, *, version: int | None = None, channel: str | None = None, trainable: bool = False
) -> "PolicySelector":
    """Which weights of `model` play: a pinned version, or a channel (head, latest). Without either it is
    head; latest where the groups may train, since a training run takes none that are too old."""
    from upcycle.api.common.v1.common_pb2 import CHANNEL_HEAD, CHANNEL_LATEST, PolicySelector

    if version is not None:
        return PolicySelector(model=model, pinned_version=version)
    is_latest = channel == "latest" if channel is not None else trainable
    return PolicySelector(model=model, channel=CHANNEL_LATEST if is_latest else CHANNEL_HEAD)


def eval_spec(
    taskset: str,
    policy: "PolicySelector",
    group: int,
    *,
    sampling: "SamplingConfig | None" = None,
    label: str = "",
    trainable: bool = False,
) -> "RunSpec":
    """An evaluation run over `taskset`, `group` episodes per task. Raises CannotTrain."""
    from upcycle.api.common.v1.common_pb2 import PURPOSE_EVAL
    from upcycle.api.taskset.v1.taskset_pb2 import RunSpec, SamplingConfig

    if trainable:
        check_trainable_group(group)
    return RunSpec(
        taskset=taskset,
        purpose=PURPOSE_EVAL,
        policy=policy,
        group_size=group,
        sampling=SamplingConfig(temperature=1.0) if sampling is None else sampling,
        label=label,
        trainable=trainable,
    )


def train_spec(
    taskset: str, model: str, group: int, training: "TrainingConfig", gate: "GateConfig | None"
) -> "RunSpec":
    """A training run that follows the channel `latest` of `model`."""
    from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, PURPOSE_TRAIN, PolicySelector
    from upcycle.api.taskset.v1.taskset_pb2 import RunSpec, SamplingConfig

    return RunSpec(
        taskset=taskset,
        purpose=PURPOSE_TRAIN,
        policy=PolicySelector(model=model, channel=CHANNEL_LATEST),
        group_size=group,
        sampling=SamplingConfig(temperature=1.0),
        training=training,
        gate=gate,
    )


def train_options(given: Mapping[str, Any]) -> TrainOptions:
    """Options from keywords or from a file. Raises OptionInvalid for an unknown name, with the nearest one,
    for a value of another type, and for a group of one."""
    types_by_name = get_type_hints(TrainOptions)
    for name, value in given.items():
        if name not in types_by_name:
            raise OptionInvalid(f"unknown option {name!r}", nearest(name, types_by_name))
        if not fits(value, types_by_name[name]):
            raise OptionInvalid(f"{name} = {value!r} is not {words(types_by_name[name])}")
    options = TrainOptions(**given)
    if options.group < 2:
        raise OptionInvalid(f"group = {options.group} must be at least 2", "8 is a good start")
    return options


def option_names() -> list[str]:
    """Every option of a training run."""
    return [field.name for field in fields(TrainOptions)]


def nearest(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """A hint: the name that was probably meant, or all of them."""
    found = get_close_matches(name, list(known), n=1)
    return f"did you mean {found[0]!r}?" if found else f"it knows {', '.join(sorted(known))}"


def fits(value: Any, kind: Any) -> bool:
    """Is a value of the annotated type? An integer is a float as well, a bool is neither."""
    if get_origin(kind) in (Union, types.UnionType):
        return any(fits(value, one) for one in get_args(kind))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def words(kind: Any) -> str:
    """A type as people read it."""
    plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    named = [one for one in (get_args(kind) or (kind,)) if one is not type(None)]
    return " or ".join(plain.get(one, str(one)) for one in named)
