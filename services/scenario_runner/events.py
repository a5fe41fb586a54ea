"""What the planner announces, and the facts it hears: protobuf to domain and back, with the ids of its
events.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from google.protobuf.message import Message

from scenario_runner import wire
from scenario_runner.domain.drawn import ClaimCheck
from scenario_runner.domain.facts import Advanced, Fact, Failed, Graded, GroupSettled, SessionFailed, Stopping
from scenario_runner.domain.plan import episode_seed
from scenario_runner.domain.runs import (
    Counts,
    EpisodeRow,
    GroupRow,
    RunRecord,
    RunState,
    Split,
)
from scenario_runner.domain.sources import Offer
from scenario_runner.domain.tasksets import RunnableTask
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.run_config import wire as run_config

REPORTED_BY = "scenario_runner"


def run_submitted(run: RunRecord) -> taskset_events.RunSubmitted:
    """Fact run.submitted; id `run.submitted/<run_id>`."""
    return taskset_events.RunSubmitted(
        run_id=run.run_id,
        spec=run_config.spec_to_wire(run.spec),
        taskset_digest=run.taskset_digest,
        split=wire.SPLITS[run.split],
        submitted_at=wire.moment(run.submitted_at),
    )


def run_stopping(run: RunRecord, reason: str, now: datetime, *, is_last: bool) -> taskset_events.RunStopping:
    """Fact run.stopping; id `run.stopping/<run_id>`, with last_word `…/last`."""
    return taskset_events.RunStopping(
        run_id=run.run_id,
        model=run.spec.policy.model,
        reason=reason,
        stopping_at=wire.moment(now),
        ending=wire.RUN_STATES[run.ending or RunState.COMPLETED],
        last_word=is_last,
    )


def group_settled(
    run: RunRecord, group_id: str, episode_ids: Sequence[str], now: datetime, source_run_id: str = ""
) -> training_events.GroupSettled:
    """Fact group.settled for a trainer that does not answer, under the trainer's id: the first one wins.

    The id is `group.settled/<group_id>`; of a group drawn from an evaluation it is
    `group.settled/<run_id>/<group_id>`.
    """
    return training_events.GroupSettled(
        group_id=group_id,
        run_id=run.run_id,
        model=run.spec.policy.model,
        outcome="released" if source_run_id else "excluded",
        reason="run_over",
        episode_ids=episode_ids,
        settled_at=wire.moment(now),
        source_run_id=source_run_id,
    )


def group_offered(run: RunRecord, offer: Offer, now: datetime) -> taskset_events.GroupOffered:
    """Fact group.offered; id `group.offered/<run_id>/<group_id>`."""
    return taskset_events.GroupOffered(
        group_id=offer.group.group_id,
        run_id=run.run_id,
        source_run_id=offer.source.run_id,
        model=run.spec.policy.model,
        group_size=offer.source.spec.group_size,
        task_digest=offer.task_digest,
        split=wire.SPLITS[offer.split],
        before_start=offer.is_before_start,
        members=[_offered(row) for row in offer.members],
        offered_at=wire.moment(now),
    )


def _offered(row: EpisodeRow) -> taskset_pb2.OfferedTrajectory:
    return taskset_pb2.OfferedTrajectory(
        trajectory_id=f"traj-{row.episode_id}",
        episode_id=row.episode_id,
        member=row.member,
        reward=row.reward,
        success=row.success,
        body=common_pb2.BlobRef(key=row.body_key, sha256=row.body_sha256, size_bytes=row.body_size),
        sampled_by=common_pb2.VersionSpan(oldest=row.oldest_version, newest=row.newest_version),
        stop_reason=trajectory_pb2.StopReason.ValueType(row.stop_reason),
    )


def run_finished(run: RunRecord, counts: Counts, now: datetime) -> taskset_events.RunFinished:
    """Fact run.finished; id `run.finished/<run_id>`."""
    return taskset_events.RunFinished(
        run_id=run.run_id,
        model=run.spec.policy.model,
        purpose=run_config.PURPOSES[run.spec.purpose],
        state=wire.RUN_STATES[run.state],
        counts=wire.counts_to_wire(counts),
        taskset=run.spec.taskset,
        taskset_digest=run.taskset_digest,
        policy=run_config.policy_to_wire(run.spec.policy),
        finished_at=wire.moment(now),
    )


def episode_requested(
    run: RunRecord, episode: EpisodeRow, task: RunnableTask, split: Split, now: datetime
) -> taskset_events.EpisodeRequested:
    """Fact and command; id `episode.requested/<episode_id>`, for a command dispatched again `…/d<n>`. split:
    of the task, which may be another than that of the run's taskset."""
    seed = episode_seed(run.spec.sampling.seed, episode.episode_id)
    return taskset_events.EpisodeRequested(
        episode_id=episode.episode_id,
        run_id=run.run_id,
        group_id=episode.group_id,
        member=episode.member,
        attempt=episode.attempt,
        group_size=run.spec.group_size,
        purpose=run_config.PURPOSES[run.spec.purpose],
        split=wire.SPLITS[split],
        policy=run_config.policy_to_wire(run.spec.policy),
        sampling=run_config.sampling_to_wire(replace(run.spec.sampling, seed=seed)),
        task_slug=task.slug,
        task_digest=task.digest,
        family=task.family,
        deadline=wire.moment(now + timedelta(seconds=run.spec.episode_deadline_s)),
        requested_at=wire.moment(now),
    )


def episode_failed(
    run: RunRecord, episode: EpisodeRow, failure: str, detail: str, now: datetime
) -> taskset_events.EpisodeFailed:
    """Fact episode.failed; id `episode.outcome/<episode_id>`, which the episode's grade shares: first one
    wins.
    """
    return taskset_events.EpisodeFailed(
        episode_id=episode.episode_id,
        run_id=run.run_id,
        group_id=episode.group_id,
        member=episode.member,
        model=run.spec.policy.model,
        purpose=run_config.PURPOSES[run.spec.purpose],
        kind=failure,
        detail=detail,
        reported_by=REPORTED_BY,
        failed_at=wire.moment(now),
    )


def episode_cancelled(
    run: RunRecord, episode: EpisodeRow, reason: str, now: datetime
) -> taskset_events.EpisodeCancelled:
    """Fact episode.cancelled; id `episode.cancelled/<episode_id>`."""
    return taskset_events.EpisodeCancelled(
        episode_id=episode.episode_id,
        run_id=run.run_id,
        group_id=episode.group_id,
        model=run.spec.policy.model,
        reason=reason,
        cancelled_at=wire.moment(now),
    )


def group_shortened(run: RunRecord, group: GroupRow, reason: str) -> taskset_events.GroupShortened:
    """Fact group.shortened; id `group.shortened/<group_id>/<expected_members>`."""
    return taskset_events.GroupShortened(
        group_id=group.group_id,
        run_id=run.run_id,
        model=run.spec.policy.model,
        expected_members=group.expected_members,
        reason=reason,
    )


def fact_from(message: Message) -> Fact | None:
    """A heard event as a fact; None for one that says nothing to the planner."""
    match message:
        case trajectory_events.TrajectoryGraded():
            span = message.sampled_by
            return Graded(
                message.episode_id,
                message.run_id,
                message.reward,
                message.success,
                message.num_turns,
                span.oldest,
                span.newest,
                _claim_check(message.body),
                message.stop_reason,
            )
        case taskset_events.EpisodeFailed():
            return Failed(message.episode_id, message.run_id, message.kind, message.detail)
        case training_events.GroupSettled():
            return GroupSettled(
                message.group_id,
                message.run_id,
                message.outcome,
                message.reason,
                message.step,
                tuple(message.episode_ids),
                message.source_run_id,
            )
        case taskset_events.RunStopping():
            return Stopping(message.run_id, message.last_word)
        case training_events.SessionFailed():
            return SessionFailed(message.run_id, message.kind, message.detail)
        case training_events.StepCompleted() | training_events.PolicyPublished():
            return Advanced(message.run_id, message.step, message.version) if message.run_id else None
        case _:
            return None


def _claim_check(body: common_pb2.BlobRef) -> ClaimCheck | None:
    return ClaimCheck(body.key, body.sha256, body.size_bytes) if body.key else None
