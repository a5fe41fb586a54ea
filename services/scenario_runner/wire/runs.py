"""Runs and tasksets: protobuf to domain and back."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToJson, Parse

from episodes.identity import SPLIT_NUMBERS, SPLITS
from identities.entities import trajectory_id
from scenario_runner.domain.environments import EnvironmentSource, PythonEnvironment, TcpEnvironment
from scenario_runner.domain.mixes import MixReport
from scenario_runner.domain.runs import Counts, EpisodeRow, EpisodeState, Prices, RunState, RunView
from scenario_runner.domain.source_groups import SourceReport
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask, TasksetFacts
from scenario_runner.domain.tracked import alarms, fallen
from scenario_runner.wire.new_tasks import new_tasks_to_wire
from scenario_runner.wire.taskset_checks import check_to_wire
from scenario_runner.wire.tracked import tracked_to_wire
from service_kit.errors import InvalidRequest
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.moments import timestamp
from upcycle.run_config import RunConfigInvalid, RunSpec
from upcycle.run_config import wire as run_config

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
    known = "SPLIT_TRAIN, SPLIT_HELD_OUT, SPLIT_AUDIT or SPLIT_UNASSIGNED"
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


def facts_to_wire(facts: TasksetFacts) -> taskset_pb2.TasksetSummary:
    """A revision without its tasks."""
    taskset = facts.taskset
    return taskset_pb2.TasksetSummary(
        name=taskset.name,
        revision=taskset.revision,
        digest=taskset.digest,
        split=SPLIT_NUMBERS[taskset.split],
        environment=source_to_wire(taskset.source),
        num_tasks=taskset.num_tasks,
        splits={side.value: count for side, count in facts.sides.items()},
        source_digest=facts.source_digest,
        registered_at=timestamp(facts.registered_at),
        checks=map(check_to_wire, facts.checks),
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


def spec_from_wire(message: taskset_pb2.RunSpec) -> RunSpec:
    """With every default filled in. Raises InvalidRequest."""
    try:
        return run_config.spec_from_wire(message)
    except RunConfigInvalid as error:
        raise InvalidRequest(str(error)) from error


def spec_to_json(spec: RunSpec) -> str:
    """For a column."""
    return MessageToJson(run_config.spec_to_wire(spec), indent=None)


@lru_cache(maxsize=256)
def spec_from_json(text: str) -> RunSpec:
    """From a column."""
    return spec_from_wire(Parse(text, taskset_pb2.RunSpec()))


def run_to_wire(view: RunView, prices: Prices) -> taskset_pb2.Run:
    """A run as clients see it."""
    run = view.run
    seconds = {name: getattr(run, name) for name in ("engine_s", "environment_s", "trainer_s")}
    message = taskset_pb2.Run(
        run_id=run.run_id,
        spec=run_config.spec_to_wire(run.spec),
        state=RUN_STATES[run.state],
        counts=counts_to_wire(view.counts),
        taskset_digest=run.taskset_digest,
        failure=run.failure,
        submitted_at=timestamp(run.submitted_at),
        policy_version=run.policy_version,
        reward_mean=run.reward_mean,
        success_rate=run.success_rate,
        trace_id=run.trace_id,
        source_digest=run.source_digest,
        step=run.step,
        taskset_revision=run.taskset_revision,
        sources=[source_report_to_wire(report) for report in view.sources],
        notice=view.notice,
        usage=common_pb2.Usage(**seconds, cost=prices.cost(run)),
        tracked=tracked_to_wire(view.tracked, run.epochs_a_step),
        ended_by_drops=run.ending is not None and bool(fallen(run.spec, view.tracked)),
        tracking_alarms=alarms(view.tracked),
        mix=map(mixed_to_wire, view.mix),
        groups=run.next_position,
        guided_groups=run.num_guided,
        new_tasks=None if view.new_tasks is None else new_tasks_to_wire(view.new_tasks),
    )
    if run.finished_at is not None:
        message.finished_at.CopyFrom(timestamp(run.finished_at))
    if run.removed_at is not None:
        message.removed_at.CopyFrom(timestamp(run.removed_at))
    return message


def mixed_to_wire(report: MixReport) -> taskset_pb2.MixedTaskset:
    """One taskset of a run that plays several."""
    row = report.row
    num = max(1, row.num_graded)
    return taskset_pb2.MixedTaskset(
        taskset=row.taskset,
        share=float(report.share),
        source_digest=row.source_digest,
        groups=row.num_groups,
        trained=row.num_trained,
        left_out=row.num_left_out,
        left_out_in_a_row=row.num_in_a_row,
        episodes=row.num_graded,
        reward_mean=row.reward_sum / num,
        success_rate=row.num_successes / num,
        guided_groups=row.num_guided,
        new_task_groups=row.num_new,
    )


def source_report_to_wire(report: SourceReport) -> taskset_pb2.SourceReport:
    """What a training run took from one evaluation."""
    return taskset_pb2.SourceReport(
        run_id=report.run_id,
        groups=report.groups,
        offered=report.offered,
        trained=report.trained,
        waiting=report.waiting,
        left_out=dict(report.left_out),
        single=report.single,
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
    has_failure = row.state in (EpisodeState.FAILED, EpisodeState.EVALUATED) and bool(row.reason)
    return taskset_pb2.EpisodeResult(
        episode_id=row.episode_id,
        trajectory_id=trajectory_id(row.episode_id),
        task_slug=task.slug,
        family=task.family,
        member=row.member,
        status=_EPISODE_STATUS.get(row.state, taskset_pb2.EPISODE_STATUS_GRADED),
        reward=row.reward,
        success=row.success,
        shadow=row.shadow,
        failure_kind=row.reason if has_failure else "",
        failure_detail=row.detail if has_failure else "",
        num_turns=row.num_turns,
        guided_after=row.guided_after,
        taskset=row.taskset,
        sampled_by=common_pb2.VersionSpan(oldest=row.oldest_version, newest=row.newest_version),
        usage=common_pb2.Usage(engine_s=row.engine_s, environment_s=row.environment_s),
    )


def _named(table: Mapping[Any, V], number: Any, field: str, expected: str) -> V:
    if number not in table:
        raise InvalidRequest(f"{field} is {number}; use {expected}")
    return table[number]
