"""Runs and tasksets: protobuf to domain and back."""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToJson, Parse
from google.protobuf.timestamp_pb2 import Timestamp

from episodes import Purpose
from episodes.identity import (
    CHANNEL_NUMBERS,
    CHANNELS,
    PURPOSE_NUMBERS,
    PURPOSES,
    SPLIT_NUMBERS,
    SPLITS,
)
from identities.entities import trajectory_id
from scenario_runner.domain.environments import EnvironmentSource, PythonEnvironment, TcpEnvironment
from scenario_runner.domain.runs import (
    DEFAULT_EPISODE_DEADLINE_S,
    Counts,
    EpisodeRow,
    EpisodeState,
    Gate,
    InvalidRequest,
    PolicyChoice,
    RunSpec,
    RunState,
    RunView,
    Sampling,
    Training,
)
from scenario_runner.domain.source_groups import SourceReport
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2

V = TypeVar("V")

RUN_STATES = {
    RunState.RUNNING: taskset_pb2.RUN_STATE_RUNNING,
    RunState.PAUSED: taskset_pb2.RUN_STATE_PAUSED,
    RunState.DRAINING: taskset_pb2.RUN_STATE_DRAINING,
    RunState.COMPLETED: taskset_pb2.RUN_STATE_COMPLETED,
    RunState.FAILED: taskset_pb2.RUN_STATE_FAILED,
    RunState.CANCELLED: taskset_pb2.RUN_STATE_CANCELLED,
}
_EPISODE_STATUS = {
    EpisodeState.PLANNED: taskset_pb2.EPISODE_STATUS_PENDING,
    EpisodeState.FAILED: taskset_pb2.EPISODE_STATUS_FAILED,
    EpisodeState.CANCELLED: taskset_pb2.EPISODE_STATUS_CANCELLED,
}


def taskset_from_wire(message: taskset_pb2.Taskset) -> RegisteredTaskset:
    """Shape only; limits and content are the use case's. Raises InvalidRequest."""
    tasks = tuple(
        RunnableTask(row.slug, row.scenario, row.args_json or "{}", row.family or "default", row.digest)
        for row in message.tasks
    )
    known = "SPLIT_TRAIN, SPLIT_HELD_OUT or SPLIT_UNASSIGNED"
    split = _named(SPLITS, message.split, "taskset.split", known)
    source = source_from_wire(message.environment)
    return RegisteredTaskset(message.name, message.digest, split, source, len(tasks), tasks)


def taskset_to_wire(taskset: RegisteredTaskset) -> taskset_pb2.Taskset:
    """With its tasks, if it has them here."""
    return taskset_pb2.Taskset(
        name=taskset.name,
        digest=taskset.digest,
        split=SPLIT_NUMBERS[taskset.split],
        revision=taskset.revision,
        environment=source_to_wire(taskset.source),
        tasks=[
            taskset_pb2.Task(
                slug=task.slug,
                scenario=task.scenario,
                args_json=task.args_json,
                family=task.family,
                digest=task.digest,
            )
            for task in taskset.tasks
        ],
    )


def source_from_wire(message: taskset_pb2.EnvironmentSpec) -> EnvironmentSource:
    """Raises InvalidRequest when no source is given."""
    kind = message.WhichOneof("source")
    if kind == "python":
        return PythonEnvironment(message.name, message.python.path, message.python.attribute)
    if kind == "tcp":
        return TcpEnvironment(message.name, message.tcp.url)
    raise InvalidRequest("environment has no source; set python.path or tcp.url")


def source_to_wire(source: EnvironmentSource) -> taskset_pb2.EnvironmentSpec:
    """The inverse of `source_from_wire`."""
    if isinstance(source, TcpEnvironment):
        return taskset_pb2.EnvironmentSpec(name=source.name, tcp=taskset_pb2.TcpSource(url=source.url))
    python = taskset_pb2.PythonSource(path=source.path, attribute=source.attribute)
    return taskset_pb2.EnvironmentSpec(name=source.name, python=python)


def source_to_json(source: EnvironmentSource) -> str:
    """For a column."""
    return MessageToJson(source_to_wire(source), indent=None)


@lru_cache(maxsize=256)
def source_from_json(text: str) -> EnvironmentSource:
    """From a column."""
    return source_from_wire(Parse(text, taskset_pb2.EnvironmentSpec()))


def policy_from_wire(message: common_pb2.PolicySelector) -> PolicyChoice:
    """Neither channel nor version means latest. Raises InvalidRequest."""
    if message.WhichOneof("at") == "pinned_version":
        return PolicyChoice(message.model, None, message.pinned_version)
    if message.channel == common_pb2.CHANNEL_UNSPECIFIED:
        return PolicyChoice(message.model)
    return PolicyChoice(message.model, _named(CHANNELS, message.channel, "policy.channel", "a channel"))


def policy_to_wire(policy: PolicyChoice) -> common_pb2.PolicySelector:
    """The inverse of `policy_from_wire`."""
    if policy.channel is None:
        return common_pb2.PolicySelector(model=policy.model, pinned_version=policy.pinned_version or 0)
    return common_pb2.PolicySelector(model=policy.model, channel=CHANNEL_NUMBERS[policy.channel])


def spec_from_wire(message: taskset_pb2.RunSpec) -> RunSpec:
    """With every default filled in. Raises InvalidRequest."""
    purpose = _named(PURPOSES, message.purpose, "spec.purpose", "PURPOSE_TRAIN or PURPOSE_EVAL")
    has_deadline = message.HasField("episode_deadline_s")
    return RunSpec(
        taskset=message.taskset,
        purpose=purpose,
        policy=policy_from_wire(message.policy),
        group_size=message.group_size,
        sampling=_filled(Sampling, message.sampling),
        training=_training(message, purpose),
        gate=_filled(Gate, message.gate, taskset=message.gate.taskset) if message.HasField("gate") else None,
        label=message.label,
        episode_deadline_s=message.episode_deadline_s if has_deadline else DEFAULT_EPISODE_DEADLINE_S,
        source_runs=tuple(message.source_runs),
        no_sampling=message.no_sampling,
        trainable=message.trainable,
    )


def spec_to_wire(spec: RunSpec) -> taskset_pb2.RunSpec:
    """The inverse of `spec_from_wire`: explicit in every field."""
    message = taskset_pb2.RunSpec(
        taskset=spec.taskset,
        purpose=PURPOSE_NUMBERS[spec.purpose],
        policy=policy_to_wire(spec.policy),
        group_size=spec.group_size,
        sampling=sampling_to_wire(spec.sampling),
        label=spec.label,
        episode_deadline_s=spec.episode_deadline_s,
        source_runs=spec.source_runs,
        no_sampling=spec.no_sampling,
        trainable=spec.trainable,
    )
    if spec.training is not None:
        message.training.CopyFrom(taskset_pb2.TrainingConfig(**_fields(spec.training)))
    if spec.gate is not None:
        message.gate.CopyFrom(taskset_pb2.GateConfig(**_fields(spec.gate)))
    return message


def sampling_to_wire(sampling: Sampling, *, seed: int | None = None) -> taskset_pb2.SamplingConfig:
    """seed: instead of the run's own."""
    message = taskset_pb2.SamplingConfig(**_fields(sampling))
    if seed is not None:
        message.seed = seed
    return message


def spec_to_json(spec: RunSpec) -> str:
    """For a column."""
    return MessageToJson(spec_to_wire(spec), indent=None)


@lru_cache(maxsize=256)
def spec_from_json(text: str) -> RunSpec:
    """From a column."""
    return spec_from_wire(Parse(text, taskset_pb2.RunSpec()))


def run_to_wire(view: RunView) -> taskset_pb2.Run:
    """A run as clients see it."""
    run = view.run
    message = taskset_pb2.Run(
        run_id=run.run_id,
        spec=spec_to_wire(run.spec),
        state=RUN_STATES[run.state],
        counts=counts_to_wire(view.counts),
        taskset_digest=run.taskset_digest,
        failure=run.failure,
        submitted_at=moment(run.submitted_at),
        policy_version=run.policy_version,
        reward_mean=run.reward_mean,
        success_rate=run.success_rate,
        trace_id=run.trace_id,
        step=run.step,
        taskset_revision=run.taskset_revision,
        sources=[source_report_to_wire(report) for report in view.sources],
        notice=view.notice,
    )
    if run.finished_at is not None:
        message.finished_at.CopyFrom(moment(run.finished_at))
    return message


def source_report_to_wire(report: SourceReport) -> taskset_pb2.SourceReport:
    """What a training run took from one evaluation."""
    return taskset_pb2.SourceReport(
        run_id=report.run_id,
        groups=report.groups,
        offered=report.offered,
        trained=report.trained,
        waiting=report.waiting,
        left_out=dict(report.left_out),
    )


def counts_to_wire(counts: Counts) -> taskset_pb2.RunCounts:
    """requested = settled + in_flight."""
    return taskset_pb2.RunCounts(
        requested=counts.requested,
        settled=counts.settled,
        in_flight=counts.in_flight,
        by_state={state.value: count for state, count in counts.by_state.items()},
        groups_open=counts.groups_open,
        groups_settled=counts.groups_settled,
        groups_by_outcome=dict(counts.groups_by_outcome),
    )


def result_to_wire(row: EpisodeRow, task: RunnableTask) -> taskset_pb2.EpisodeResult:
    """One episode that counts."""
    return taskset_pb2.EpisodeResult(
        episode_id=row.episode_id,
        trajectory_id=trajectory_id(row.episode_id),
        task_slug=task.slug,
        family=task.family,
        member=row.member,
        status=_EPISODE_STATUS.get(row.state, taskset_pb2.EPISODE_STATUS_GRADED),
        reward=row.reward,
        success=row.success,
        failure_kind=row.reason if row.state is EpisodeState.FAILED else "",
        num_turns=row.num_turns,
        sampled_by=common_pb2.VersionSpan(oldest=row.oldest_version, newest=row.newest_version),
    )


def moment(value: datetime) -> Timestamp:
    """An aware datetime as a Timestamp."""
    stamp = Timestamp()
    stamp.FromDatetime(value)
    return stamp


def _training(message: taskset_pb2.RunSpec, purpose: Purpose) -> Training | None:
    if purpose is Purpose.TRAIN:
        if message.trainable:
            raise InvalidRequest("spec.trainable is for purpose EVAL only; this run has purpose TRAIN")
        return _filled(Training, message.training, loss_config=dict(message.training.loss_config))
    given = {
        "training": message.HasField("training"),
        "gate": message.HasField("gate"),
        "source_runs": bool(message.source_runs),
        "no_sampling": message.no_sampling,
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise InvalidRequest(f"spec.{name} is for purpose TRAIN only; this run has purpose EVAL")
    return None


def _filled(cls: type[V], message: Any, **given: Any) -> V:
    """A domain object from the optional fields that are set; the class has the defaults."""
    names = [one.name for one in message.DESCRIPTOR.fields if one.name not in given]
    present = {name: getattr(message, name) for name in names if message.HasField(name)}
    return cls(**present, **given)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _named(table: Mapping[Any, V], number: Any, field: str, expected: str) -> V:
    if number not in table:
        raise InvalidRequest(f"{field} is {number}; use {expected}")
    return table[number]
