"""protobuf <-> domain, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from blob_store import BlobRef
from blob_store import ref as blob_ref
from grpo_trainer.domain.errors import InvalidTrainingSpec, UnusableTrajectory
from grpo_trainer.domain.failures import Failure
from grpo_trainer.domain.offers import OfferedGroup
from grpo_trainer.domain.rewards import RewardPart
from grpo_trainer.domain.spec import TrainingSpec, spec_of_run
from grpo_trainer.domain.states import BasePolicy
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.token_rows import EpisodeTokens, episode_tokens
from grpo_trainer.domain.trajectories import GradedTrajectory, Settlement
from identities import events as event_ids
from identities.entities import checkpoint_id, is_recorded_run
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.registry.v1 import registry_pb2 as registry
from upcycle.api.taskset.v1.events_pb2 import GroupOffered, RunSubmitted
from upcycle.api.taskset.v1.taskset_pb2 import OfferedTrajectory
from upcycle.api.training.v1 import events_pb2 as events
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.moments import timestamp
from upcycle.run_config import RunConfigInvalid
from upcycle.run_config import wire as run_config
from upcycle.tasks import plain_name

_TRACE_HEADERS: Final = ("traceparent", "tracestate")
_IDENTITY: Final = attrgetter("trajectory_id", "run_id", "group_id", "member", "task_digest")
"""What a fact and the stored body must agree about."""
_SESSION: Final = attrgetter("trajectory_id", "run_id", "task_digest")
"""The same of a recorded session, whose reward says which group it is of after its body is stored."""
_CUT_OFF: Final = (trajectory.STOP_REASON_MAX_TOKENS, trajectory.STOP_REASON_MAX_TURNS)
"""A budget of the policy ended the episode, not its answer."""

_NEVER_TRAINS: Final = (common.SPLIT_HELD_OUT, common.SPLIT_AUDIT)


def is_training(submitted: RunSubmitted) -> bool:
    """Whether the run asks for gradients."""
    return submitted.spec.purpose == common.PURPOSE_TRAIN


def spec_from_wire(submitted: RunSubmitted) -> TrainingSpec:
    """What a training run asks for. Raises InvalidTrainingSpec."""
    try:
        run = run_config.spec_from_wire(submitted.spec)
    except RunConfigInvalid as error:
        raise InvalidTrainingSpec(f"run {submitted.run_id}: {error}") from error
    return spec_of_run(submitted.run_id, run, held_out_split=submitted.split in _NEVER_TRAINS)


def graded_from_wire(
    message: TrajectoryGraded, sequence: int, headers: Mapping[str, str]
) -> GradedTrajectory:
    """A graded trajectory as the assembler sees it."""
    episode = message.episode
    return GradedTrajectory(
        trajectory_id=episode.trajectory_id,
        episode_id=episode.episode_id,
        run_id=episode.run_id,
        group_id=episode.group_id,
        member=episode.member,
        group_size=episode.group_size,
        task_digest=episode.task_digest,
        may_train=_trains(episode),
        sequence=sequence,
        trace_headers=trace_headers(headers),
        num_tokens=message.num_sampled_tokens,
        turn_rewards=tuple(message.turn_rewards),
        guided=bool(episode.guided_after),
        guidance_kinds=tuple(message.guidance_kinds),
        evaluated=episode.purpose == common.PURPOSE_EVAL,
        taskset=plain_name(episode.taskset),
        parts=tuple(RewardPart(one.name, one.weight, one.value) for one in message.subscores),
        **_sampled(message),
    )


def offer_from_wire(message: GroupOffered, sequence: int, headers: Mapping[str, str]) -> OfferedGroup:
    """A group of an evaluation as the assembler sees it."""
    of_group: dict[str, Any] = {
        "run_id": message.source_run_id,
        "group_id": message.group_id,
        "group_size": message.group_size,
        "task_digest": message.task_digest,
        "may_train": message.split == common.SPLIT_TRAIN,
        "sequence": sequence,
        "trace_headers": trace_headers(headers),
        "offered": True,
        "proposal": message.source_run_id == message.run_id,
        "taskset": plain_name(message.taskset),
    }
    members = (
        GradedTrajectory(
            trajectory_id=one.trajectory_id,
            episode_id=one.episode_id,
            member=one.member,
            **of_group,
            **_sampled(one),
        )
        for one in message.members
    )
    return OfferedGroup(
        group_id=message.group_id,
        source_run_id=message.source_run_id,
        group_size=message.group_size,
        before_start=message.before_start,
        members=tuple(members),
        sequence=sequence,
    )


def _sampled(message: TrajectoryGraded | OfferedTrajectory) -> dict[str, Any]:
    """What both facts say about a rollout in the same fields."""
    return {
        "reward": message.reward,
        "success": message.success,
        "body": blob_ref.from_wire(message.body),
        "oldest_version": message.sampled_by.oldest,
        "newest_version": message.sampled_by.newest,
        "cut_off": message.stop_reason in _CUT_OFF,
    }


def trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The W3C trace context among the headers of a message."""
    return {name: headers[name] for name in _TRACE_HEADERS if name in headers}


def base_from_wire(checkpoint: registry.Checkpoint) -> BasePolicy:
    """A checkpoint as the base of further training."""
    return BasePolicy(checkpoint.version, checkpoint.checkpoint_id, blob_ref.from_wire(checkpoint.manifest))


def tokens_from_body(
    body: trajectory.TrajectoryBody, graded: GradedTrajectory, *, train_parse_errors: bool
) -> EpisodeTokens:
    """The rows of a stored episode. Raises UnusableTrajectory where body and fact disagree, or arrays do."""
    episode = body.episode
    trains = _offered_body_trains(episode) if graded.offered else _trains(episode)
    of = _SESSION if graded.offered and is_recorded_run(episode.run_id) else _IDENTITY
    said, holds = (*of(graded), graded.may_train), (*of(episode), trains)
    if said != holds:
        raise UnusableTrajectory(f"{graded.trajectory_id}: the stored body has {holds}, the event has {said}")
    tokens = tokens_of_body(body, train_parse_errors=train_parse_errors)
    span = (tokens.oldest_version, tokens.newest_version)
    if span != (graded.oldest_version, graded.newest_version):
        raise UnusableTrajectory(
            f"{graded.trajectory_id}: its tokens are of versions {span}, the event names "
            f"{(graded.oldest_version, graded.newest_version)}: staleness cannot be trusted"
        )
    return tokens


def _trains(episode: common.EpisodeIdentity) -> bool:
    return episode.purpose == common.PURPOSE_TRAIN and episode.split == common.SPLIT_TRAIN


def _offered_body_trains(episode: common.EpisodeIdentity) -> bool:
    """A task that was unassigned when it was evaluated may have been claimed for training since: the offer
    decides.
    """
    was_allowed = episode.split in (common.SPLIT_TRAIN, common.SPLIT_UNASSIGNED)
    return episode.purpose == common.PURPOSE_EVAL and was_allowed


def tokens_of_body(body: trajectory.TrajectoryBody, *, train_parse_errors: bool) -> EpisodeTokens:
    """The rows of a stored episode, as it is. Raises UnusableTrajectory where arrays disagree."""
    return episode_tokens(
        body.episode.trajectory_id,
        body.turns,
        temperature=body.temperature,
        train_parse_errors=train_parse_errors,
    )


def group_settled(
    spec: TrainingSpec, settlement: Settlement, at: datetime
) -> tuple[events.GroupSettled, str]:
    """The fact, and its event id."""
    event = events.GroupSettled(
        group_id=settlement.group_id,
        run_id=spec.run_id,
        model=spec.model,
        outcome=settlement.outcome.value,
        reason=settlement.reason.value,
        step=settlement.step,
        episode_ids=settlement.episode_ids,
        settled_at=timestamp(at),
        source_run_id=settlement.source_run_id,
    )
    offered_to = spec.run_id if settlement.source_run_id else None
    return event, event_ids.group_settled(settlement.group_id, offered_to=offered_to)


def metrics_to_wire(values: Mapping[str, float], staleness: Mapping[int, int]) -> training.TrainingMetrics:
    """Metrics of a step."""
    return training.TrainingMetrics(values=dict(values), staleness=dict(staleness))


def step_completed(spec: TrainingSpec, record: StepRecord) -> tuple[events.StepCompleted, str]:
    """The fact, and its event id."""
    event = events.StepCompleted(
        run_id=spec.run_id,
        model=spec.model,
        step=record.step,
        version=record.version,
        trajectory_ids=record.trajectory_ids,
        metrics=metrics_to_wire(record.metrics, record.staleness),
        completed_at=timestamp(record.completed_at),
        traceparent=record.traceparent,
        usage=common.Usage(trainer_s=record.metrics.get("trainer_s", 0.0)),
    )
    return event, event_ids.step_completed(spec.run_id, record.step)


def policy_published(
    spec: TrainingSpec,
    *,
    version: int,
    step: int,
    digest: str,
    manifest: BlobRef,
    at: datetime,
    state: BlobRef | None,
) -> tuple[events.PolicyPublished, str]:
    """The fact, and its event id. state: marker of the durable state; None: none was saved."""
    event = events.PolicyPublished(
        model=spec.model,
        version=version,
        digest=digest,
        manifest=blob_ref.to_wire(manifest),
        run_id=spec.run_id,
        step=step,
        target_steps=spec.steps,
        published_at=timestamp(at),
        training_state=None if state is None else blob_ref.to_wire(state),
    )
    return event, event_ids.policy_published(spec.model, version)


def checkpoint_saved(
    spec: TrainingSpec,
    record: StepRecord,
    *,
    digest: str,
    manifest: BlobRef,
    state: BlobRef,
    sources: Mapping[str, int],
    keeps_head: bool,
) -> tuple[events.CheckpointSaved, str]:
    """The fact, and its event id."""
    identity = checkpoint_id(spec.model, record.version)
    event = events.CheckpointSaved(
        checkpoint_id=identity,
        model=spec.model,
        version=record.version,
        parent_checkpoint_id=record.parent_checkpoint_id,
        digest=digest,
        manifest=blob_ref.to_wire(manifest),
        training_state=blob_ref.to_wire(state),
        run_id=spec.run_id,
        step=record.step,
        is_final=record.is_final,
        metrics=metrics_to_wire(record.metrics, record.staleness),
        saved_at=timestamp(record.completed_at),
        sources=sources,
        keeps_head=keeps_head,
    )
    return event, event_ids.of_checkpoint("saved", identity)


def session_failed(failure: Failure) -> tuple[events.SessionFailed, str]:
    """The fact, and its event id."""
    event = events.SessionFailed(
        run_id=failure.run_id,
        model=failure.model,
        kind=failure.kind.value,
        detail=failure.detail,
        step=failure.step,
        failed_at=timestamp(failure.failed_at),
    )
    return event, event_ids.session_failed(failure.run_id)


def canary_rows(rows: Iterable[tuple[list[int], list[float]]]) -> tuple[training.CanaryRow, ...]:
    """Rows that prove a reload: token ids, and log-probabilities of all but the first."""
    return tuple(training.CanaryRow(token_ids=ids, logprobs=logprobs) for ids, logprobs in rows)
