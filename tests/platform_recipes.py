"""What the whole-platform tests run: the incident example, small."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from local_demo.plan import HELD_OUT_TASKSET, MODEL, TRAIN_TASKSET
from local_stack.stack import Stack, StackSettings
from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, PURPOSE_EVAL, PURPOSE_TRAIN, PolicySelector
from upcycle.api.taskset.v1.taskset_pb2 import GateConfig, RunSpec, SamplingConfig, TrainingConfig
from upcycle.cli.tasksets import load_source
from upcycle.platform import Addresses, Platform
from upcycle.tasks import Taskset

__all__ = ["HELD_OUT_TASKSET", "MODEL", "TRAIN_TASKSET"]

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLE = REPOSITORY / "examples" / "incident"
POLICY_DIR = EXAMPLE / "policy"


def small_stack(
    data_dir: Path,
    *,
    model: str = MODEL,
    extra_env: Mapping[str, str] = MappingProxyType({}),
    roots: tuple[Path, ...] = (REPOSITORY,),
) -> Stack:
    """A platform of its own, with the incident policy as version 0 of `model`. Start it with `async with`.
    Its heads are not watched unless extra_env says so: a test counts the runs that it ordered itself."""
    settings = StackSettings(
        data_dir=data_dir,
        model=model,
        model_dir=POLICY_DIR,
        environment_roots=roots,
        ephemeral_ports=True,
        extra_env={"CHECKPOINT_REGISTRY_WATCH_PAIRS": "0", **extra_env},
    )
    return Stack(settings)


def addresses(stack: Stack) -> Addresses:
    """How a client of this stack finds it."""
    return Addresses(
        stack.peers, "the test's stack", stack.gateway_key_file, operator_key_file=stack.operator_key_file
    )


async def register_incident(stack: Stack, repository: Path = REPOSITORY) -> None:
    """Register incident's taskset and its held-out one. repository: whose environment plays them; a release
    older than the third split, audit, would refuse that one."""
    source = load_source(str(EXAMPLE / "tasks.py"), TRAIN_TASKSET)
    played_by = repository / "examples" / "incident" / "env.py"
    tasksets = tuple(_moved(taskset, played_by) for taskset in source.defined if taskset.split != "audit")
    async with Platform(addresses(stack)) as platform:
        await replace(source, defined=tasksets).register(platform)


def _moved(taskset: Taskset, environment: Path) -> Taskset:
    """The same tasks of another environment file."""
    tasks = (replace(task, environment=replace(task.environment, path=str(environment))) for task in taskset)
    return Taskset(taskset.name, tasks, taskset.split)


def sampling(seed: int) -> SamplingConfig:
    """Budgets of the incident task."""
    return SamplingConfig(temperature=1.0, max_turns=8, max_tokens_per_turn=64, seed=seed)


def small_training(*, steps: int, seed: int = 1, gate: bool = True) -> RunSpec:
    """A training run of `steps` steps, 8 groups of 4 each, judged every 4 steps."""
    training = TrainingConfig(
        steps=steps,
        prompts_per_step=8,
        max_staleness=4,
        learning_rate=5e-4,
        lr_schedule="constant",
        checkpoint_every_steps=4,
        seed=seed,
    )
    return RunSpec(
        taskset=TRAIN_TASKSET,
        purpose=PURPOSE_TRAIN,
        policy=PolicySelector(model=MODEL, channel=CHANNEL_LATEST),
        group_size=4,
        sampling=sampling(seed),
        training=training,
        gate=GateConfig(taskset=HELD_OUT_TASKSET, attempts=1) if gate else None,
        episode_deadline_s=60,
    )


def evaluation(*, group: int = 1, seed: int = 1, taskset: str = HELD_OUT_TASKSET) -> RunSpec:
    """An evaluation of the newest weights."""
    return RunSpec(
        taskset=taskset,
        purpose=PURPOSE_EVAL,
        policy=PolicySelector(model=MODEL, channel=CHANNEL_LATEST),
        group_size=group,
        sampling=sampling(seed),
        episode_deadline_s=60,
    )
