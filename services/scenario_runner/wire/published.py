"""What the planner publishes, from domain to protobuf; `identities.events` has the ids."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from blob_store import BlobRef
from blob_store import ref as blob_ref
from episodes import (
    ATTRIBUTABLE,
    EpisodeIdentity,
    GroupOutcome,
    GroupReason,
    Purpose,
    identity_to_wire,
    policy_failure,
)
from episodes.identity import PURPOSE_NUMBERS, SPLIT_NUMBERS
from identities.entities import parse_group_id, trajectory_id
from scenario_runner.domain.plan import episode_seed, visit_of
from scenario_runner.domain.runs import Counts, EpisodeRow, GroupRow, RunRecord, RunState
from scenario_runner.domain.self_play import proposes
from scenario_runner.domain.sources import Offer
from scenario_runner.domain.tasksets import RunnableTask
from scenario_runner.wire import runs as wire
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.moments import timestamp
from upcycle.run_config import wire as run_config


def episode_identity(run: RunRecord, episode: EpisodeRow, task: RunnableTask) -> common_pb2.EpisodeIdentity:
    """Says which episode a message is about. Made here and nowhere else; other services copy the message."""
    return identity_to_wire(
        EpisodeIdentity(
            episode_id=episode.episode_id,
            run_id=run.run_id,
            group_id=episode.group_id,
            member=episode.member,
            group_size=run.spec.group_size,
            model=run.spec.policy.model,
            # A proposal is graded as an evaluation's episode is, and trains in the group that is offered.
            purpose=Purpose.EVAL if proposes(run.spec, task.scenario, episode.new_task) else run.spec.purpose,
            split=episode.split,
            task_slug=task.slug,
            task_digest=task.digest,
            family=task.family,
            tenant=run.tenant,
            guided_after=episode.guided_after,
            taskset=episode.taskset,
        )
    )


def run_submitted(run: RunRecord) -> taskset_events.RunSubmitted:
    """Fact run.submitted."""
    return taskset_events.RunSubmitted(
        run_id=run.run_id,
        spec=run_config.spec_to_wire(run.spec),
        taskset_digest=run.taskset_digest,
        split=SPLIT_NUMBERS[run.split],
        submitted_at=timestamp(run.submitted_at),
    )


def trajectory_graded(
    episode: EpisodeRow, identity: common_pb2.EpisodeIdentity
) -> trajectory_events.TrajectoryGraded:
    """Fact trajectory.graded of a graded episode, as far as its row knows it: without the subscores and the
    number of sampled tokens, which the body has."""
    return trajectory_events.TrajectoryGraded(
        episode=identity,
        body=blob_ref.to_wire(BlobRef(episode.body_key, episode.body_sha256, episode.body_size)),
        sampled_by=common_pb2.VersionSpan(oldest=episode.oldest_version, newest=episode.newest_version),
        reward=episode.reward,
        success=episode.success,
        num_turns=episode.num_turns,
        stop_reason=trajectory_pb2.StopReason.ValueType(episode.stop_reason),
        usage=common_pb2.Usage(engine_s=episode.engine_s, environment_s=episode.environment_s),
        failure=policy_failure(episode.reason, episode.detail) if episode.reason in ATTRIBUTABLE else None,
        graded_at=timestamp(episode.graded_at) if episode.graded_at is not None else None,
        guidance_kinds=episode.guidance_kinds.split(",") if episode.guidance_kinds else (),
    )


def run_stopping(run: RunRecord, reason: str, now: datetime, *, is_final: bool) -> taskset_events.RunStopping:
    """Fact run.stopping: the request to stop, or, after the trainer missed its deadline, the final stop."""
    return taskset_events.RunStopping(
        run_id=run.run_id,
        model=run.spec.policy.model,
        reason=reason,
        stopping_at=timestamp(now),
        ending=wire.RUN_STATES[run.ending or RunState.COMPLETED],
        is_final=is_final,
    )


def group_settled(
    run: RunRecord, group_id: str, episode_ids: Sequence[str], now: datetime, source_run_id: str = ""
) -> training_events.GroupSettled:
    """Fact group.settled, published by the planner because the trainer missed its deadline."""
    return training_events.GroupSettled(
        group_id=group_id,
        run_id=run.run_id,
        model=run.spec.policy.model,
        outcome=GroupOutcome.RELEASED if source_run_id else GroupOutcome.EXCLUDED,
        reason=GroupReason.RUN_OVER,
        episode_ids=episode_ids,
        settled_at=timestamp(now),
        source_run_id=source_run_id,
    )


def group_offered(run: RunRecord, offer: Offer, now: datetime) -> taskset_events.GroupOffered:
    """Fact group.offered."""
    return taskset_events.GroupOffered(
        group_id=offer.group_id,
        run_id=run.run_id,
        source_run_id=offer.source_run_id,
        model=run.spec.policy.model,
        group_size=offer.group_size,
        task_digest=offer.task_digest,
        split=SPLIT_NUMBERS[offer.split],
        before_start=offer.is_before_start,
        members=[_offered(row) for row in offer.members],
        offered_at=timestamp(now),
        taskset=offer.taskset,
    )


def _offered(row: EpisodeRow) -> taskset_pb2.OfferedTrajectory:
    return taskset_pb2.OfferedTrajectory(
        trajectory_id=trajectory_id(row.episode_id),
        episode_id=row.episode_id,
        member=row.member,
        reward=row.reward,
        success=row.success,
        body=blob_ref.to_wire(BlobRef(row.body_key, row.body_sha256, row.body_size)),
        sampled_by=common_pb2.VersionSpan(oldest=row.oldest_version, newest=row.newest_version),
        stop_reason=trajectory_pb2.StopReason.ValueType(row.stop_reason),
    )


def run_finished(run: RunRecord, counts: Counts, now: datetime) -> taskset_events.RunFinished:
    """Fact run.finished."""
    return taskset_events.RunFinished(
        run_id=run.run_id,
        model=run.spec.policy.model,
        purpose=PURPOSE_NUMBERS[run.spec.purpose],
        state=wire.RUN_STATES[run.state],
        counts=wire.counts_to_wire(counts),
        taskset=run.spec.taskset,
        taskset_digest=run.taskset_digest,
        policy=run_config.policy_to_wire(run.spec.policy),
        finished_at=timestamp(now),
    )


def episode_requested(
    run: RunRecord, episode: EpisodeRow, task: RunnableTask, now: datetime
) -> taskset_events.EpisodeRequested:
    """The command to samplers and the fact episode.requested: two messages with one body."""
    sampling = run_config.sampling_to_wire(run.spec.sampling)
    sampling.seed = _seed(run, episode, task)
    return taskset_events.EpisodeRequested(
        episode=episode_identity(run, episode, task),
        attempt=episode.attempt,
        policy=run_config.policy_to_wire(run.spec.policy_of(episode.member)),
        sampling=sampling,
        deadline=timestamp(now + timedelta(seconds=run.spec.episode_deadline_s)),
        requested_at=timestamp(now),
        failures_are_missing=run.spec.failures_are_missing,
    )


def _seed(run: RunRecord, episode: EpisodeRow, task: RunnableTask) -> int:
    group = parse_group_id(episode.group_id)
    visit = visit_of(run, group.position if group is not None else 0)
    attempt = episode.member // run.spec.num_sides  # equal for both sides of a pair
    return episode_seed(run.spec.sampling.seed, task.slug, visit, attempt, episode.attempt)


def episode_cancelled(
    identity: common_pb2.EpisodeIdentity, reason: str, now: datetime
) -> taskset_events.EpisodeCancelled:
    """Fact episode.cancelled."""
    return taskset_events.EpisodeCancelled(episode=identity, reason=reason, cancelled_at=timestamp(now))


def group_shortened(run: RunRecord, group: GroupRow, reason: str) -> taskset_events.GroupShortened:
    """Fact group.shortened."""
    return taskset_events.GroupShortened(
        group_id=group.group_id,
        run_id=run.run_id,
        model=run.spec.policy.model,
        expected_members=group.expected_members,
        reason=reason,
    )
