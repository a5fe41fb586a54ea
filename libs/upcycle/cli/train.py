"""`upcycle train`."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import human, print_json
from upcycle.errors import UpcycleError
from upcycle.platform import Platform

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, RunSpec


class TooSmallGroup(UpcycleError, ValueError):
    """Advantages are relative to a group; a group of one teaches nothing."""

    kind = "group_too_small"


async def train(
    model: str,
    *,
    taskset: str,
    taskset_name: str | None = None,
    steps: int = 100,
    group: int = 8,
    prompts: int = 16,
    learning_rate: float = 1e-5,
    max_staleness: int = 4,
    checkpoint_every: int = 10,
    loss: str = "ppo",
    gate: str | None = None,
    gate_attempts: int = 4,
    seed: int = 0,
    timeout_s: float = 86_400.0,
    detach: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Train MODEL with online GRPO: roll out, grade, step, publish, until STEPS are done.

    Parameters
    ----------
    model: slug of the model; its weights advance in place.
    taskset: a tasks file, or the name of a registered taskset of split train.
    taskset_name: which taskset of the file.
    steps: optimizer steps.
    group: rollouts per task, at least 2.
    prompts: tasks per optimizer step.
    learning_rate: of AdamW, constant.
    max_staleness: the oldest policy, in versions, whose tokens are still trained.
    checkpoint_every: steps between checkpoints that ask to be promoted.
    loss: name of the loss (`ppo`, `importance_sampling`, …).
    gate: held-out taskset that a checkpoint must prove itself on; without it nothing is promoted.
    gate_attempts: episodes per held-out task.
    seed: of task order and sampling.
    timeout_s: give up watching after so many seconds; the run goes on.
    detach: print the run id and leave.
    as_json: JSON lines: `launch`, `progress`…, `done`.
    """
    from grpc_edge import remote_errors
    from upcycle.api.taskset.v1.taskset_pb2 import GateConfig, TrainingConfig
    from upcycle.cli import watching

    if group < 2:
        raise TooSmallGroup(f"--group {group} must be at least 2", "8 is a good start")
    config = TrainingConfig(
        steps=steps, prompts_per_step=prompts, max_staleness=max_staleness, learning_rate=learning_rate
    )
    config.MergeFrom(TrainingConfig(checkpoint_every_steps=checkpoint_every, loss=loss, seed=seed))
    async with Platform() as platform, remote_errors():
        name = await watching.register(platform, taskset, taskset_name)
        gate_config = GateConfig(taskset=gate, attempts=gate_attempts) if gate else None
        spec = train_spec(name, model, group, config, gate_config)
        run = await watching.submit(platform, spec)
        _say(run, "launch", as_json)
        if not detach:
            run = await watching.follow(platform, run.run_id, Curve(as_json), timeout_s=timeout_s)
            _say(run, "done", as_json)
    return Exit.OK if detach or _completed(run) else Exit.FAILED


def train_spec(taskset: str, model: str, group: int, training: object, gate: object | None) -> "RunSpec":
    """A training run that follows the channel `latest` of `model`."""
    from upcycle.api.common.v1.common_pb2 import CHANNEL_LATEST, PURPOSE_TRAIN, PolicySelector
    from upcycle.api.taskset.v1.taskset_pb2 import RunSpec, SamplingConfig

    policy = PolicySelector(model=model, channel=CHANNEL_LATEST)
    return RunSpec(
        taskset=taskset,
        purpose=PURPOSE_TRAIN,
        policy=policy,
        group_size=group,
        sampling=SamplingConfig(temperature=1.0),
        training=training,  # type: ignore[arg-type]
        gate=gate,  # type: ignore[arg-type]
    )


def _completed(run: "Run") -> bool:
    from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED

    return bool(run.state == RUN_STATE_COMPLETED)


def _say(run: "Run", kind: str, as_json: bool) -> None:
    if as_json:
        print_json(kind, run)
    elif kind == "launch":
        human().print(f"run [bold]{run.run_id}[/bold] trains {run.spec.policy.model} on {run.spec.taskset}")
    else:
        print(
            f"{run.run_id}: {run.policy_version} versions, reward {run.reward_mean:.3f}, "
            f"{run.counts.settled} episodes"
        )


class Curve:
    """One line per new policy version."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._version = -1
        self._console = human()

    def __call__(self, run: "Run") -> None:
        if run.policy_version == self._version:
            return
        self._version = run.policy_version
        if self._as_json:
            print_json("progress", run)
        counts = run.counts
        self._console.print(
            f"v{run.policy_version:<4} reward {run.reward_mean:.3f}  success {run.success_rate:.1%}  "
            f"settled {counts.settled}/{counts.requested}  groups open {counts.groups_open}"
        )
