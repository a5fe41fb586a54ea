"""Runs and tasksets of the planner: protobuf <-> domain, nothing else."""

from collections.abc import Mapping
from dataclasses import asdict

from checkpoint_registry.domain.evidence import SamplingProfile
from checkpoint_registry.domain.jobs import GateSpec
from checkpoint_registry.domain.runs import (
    EpisodeOutcome,
    EvaluationOrder,
    EvaluationRun,
    RunOutcome,
    TasksetView,
    TrainingLoad,
)
from identities import entities
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2 as taskset_service_pb2
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.moments import moment_of
from upcycle.run_config import wire as run_config

_OUTCOMES: Mapping[int, RunOutcome] = {
    taskset_pb2.RUN_STATE_COMPLETED: RunOutcome.COMPLETED,
    taskset_pb2.RUN_STATE_FAILED: RunOutcome.FAILED,
    taskset_pb2.RUN_STATE_CANCELLED: RunOutcome.CANCELLED,
}


def run_from_wire(response: taskset_service_pb2.GetRunResponse) -> EvaluationRun:
    """A run with its results, if any: those that are evidence, in whatever reads results."""
    run = response.run
    spec, policy = run.spec, run.spec.policy
    pinned = policy.pinned_version if policy.WhichOneof("at") == "pinned_version" else None
    return EvaluationRun(
        run_id=run.run_id,
        model=policy.model,
        is_evaluation=spec.purpose == common_pb2.PURPOSE_EVAL,
        outcome=_OUTCOMES.get(run.state, RunOutcome.UNFINISHED),
        failure=run.failure,
        taskset=spec.taskset,
        taskset_digest=run.taskset_digest,
        pinned_version=pinned,
        profile=profile_from_wire(spec.sampling),
        gate=gate_from_wire(spec.gate) if spec.HasField("gate") and spec.gate.taskset else None,
        finished_at=moment_of(run.finished_at) if run.HasField("finished_at") else None,
        results=tuple(_result_from_wire(one) for one in response.results if _is_evidence(one)),
        traps=tuple(_result_from_wire(one) for one in response.results if one.family == IMPOSSIBLE_FAMILY),
        taskset_revision=run.taskset_revision,
        source_digest=run.source_digest,
        episode_deadline_s=spec.episode_deadline_s,
        ended_by_drops=run.ended_by_drops,
        against_version=spec.against_version if spec.HasField("against_version") else None,
        engine_s=run.usage.engine_s,
    )


def training_from_wire(run: taskset_pb2.Run) -> TrainingLoad | None:
    """None for an evaluation, and for a run that takes no engine: it is paused, or samples nothing."""
    is_on = run.state in (taskset_pb2.RUN_STATE_RUNNING, taskset_pb2.RUN_STATE_DRAINING)
    if run.spec.purpose != common_pb2.PURPOSE_TRAIN or run.spec.no_sampling or not is_on:
        return None
    return TrainingLoad(run.run_id, run.usage.engine_s, run.counts.settled, moment_of(run.submitted_at))


def pinned_by(spec: taskset_pb2.RunSpec) -> list[tuple[str, int]]:
    """(model, version) of what a run is pinned to: two where versions play side by side."""
    policy = spec.policy
    pinned = [policy.pinned_version] if policy.WhichOneof("at") == "pinned_version" else []
    against = [spec.against_version] if spec.HasField("against_version") else []
    return [(policy.model, version) for version in pinned + against]


def profile_from_wire(message: taskset_pb2.SamplingConfig) -> SamplingProfile:
    """With the defaults of the run configuration."""
    sampling = run_config.sampling_from_wire(message)
    return SamplingProfile(**{name: getattr(sampling, name) for name in SamplingProfile.__slots__})


def gate_from_wire(message: taskset_pb2.GateConfig) -> GateSpec:
    """With the defaults of the run configuration."""
    gate = run_config.gate_from_wire(message)
    return GateSpec(**{name: getattr(gate, name) for name in GateSpec.__slots__})


def _is_evidence(result: taskset_pb2.EpisodeResult) -> bool:
    """What was guided shows nothing of the policy, and what has no solution shows only whether it cheats: the
    monitors of reward hacks see to that."""
    return not result.guided_after and result.family != IMPOSSIBLE_FAMILY


def _result_from_wire(result: taskset_pb2.EpisodeResult) -> EpisodeOutcome:
    return EpisodeOutcome(
        task_slug=result.task_slug,
        family=result.family or "default",
        graded=result.status == taskset_pb2.EPISODE_STATUS_GRADED,
        success=result.success,
        oldest_version=result.sampled_by.oldest,
        newest_version=result.sampled_by.newest,
        member=result.member,
        group_id=entities.group_of_episode(result.episode_id),
        failure_kind=result.failure_kind,
        shadow=result.shadow if result.HasField("shadow") else None,
    )


def taskset_from_wire(taskset: taskset_pb2.Taskset) -> TasksetView:
    """What the gate asks about a taskset: without the tasks that have no solution, which count nowhere."""
    held_out = taskset.split == common_pb2.SPLIT_HELD_OUT
    families = {
        task.slug: task.family or "default" for task in taskset.tasks if task.family != IMPOSSIBLE_FAMILY
    }
    return TasksetView(taskset.name, taskset.digest, held_out, len(families), taskset.revision, families)


def is_ordered_by(spec: taskset_pb2.RunSpec, order: EvaluationOrder) -> bool:
    """By its seed, which is of the order's request, and by its versions."""
    return (
        spec.purpose == common_pb2.PURPOSE_EVAL
        and spec.sampling.seed == order.seed
        and spec.policy.pinned_version == order.version
        and spec.against_version == order.against_version
    )


def order_to_wire(order: EvaluationOrder) -> taskset_service_pb2.SubmitRunRequest:
    """A run of two pinned versions."""
    return taskset_service_pb2.SubmitRunRequest(
        request_id=order.request_id,
        spec=taskset_pb2.RunSpec(
            taskset=order.taskset,
            purpose=common_pb2.PURPOSE_EVAL,
            policy=common_pb2.PolicySelector(model=order.model, pinned_version=order.version),
            group_size=2 * order.attempts,
            against_version=order.against_version,
            families=order.families,
            draws=order.draws,
            max_concurrent=order.max_concurrent,
            sampling=taskset_pb2.SamplingConfig(**asdict(order.profile), seed=order.seed),
            label=order.label,
            episode_deadline_s=order.episode_deadline_s or None,
        ),
    )
