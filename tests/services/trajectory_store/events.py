"""Facts as their owners publish them, for episodes of a made-up run."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from blob_store import BlobRef
from blob_store.ref import to_wire
from episodes import EpisodeIdentity, Purpose, Split, identity_to_wire
from identities import entities, objects
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeCancelled, EpisodeFailed, EpisodeRequested
from upcycle.api.training.v1.events_pb2 import GroupSettled, StepCompleted
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryRecorded

MODEL = "incident"
START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
TRAIN, EVAL = Purpose.TRAIN, Purpose.EVAL


def at(second: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(START + timedelta(seconds=second))
    return stamp


def episode_id(number: int, run: str = "run-1") -> str:
    return f"{group_id(number, run)}-e{number % 4:03d}-a0"


def group_id(number: int, run: str = "run-1") -> str:
    return entities.group_id(run, number // 4)


def identity(
    number: int, *, run: str = "run-1", purpose: Purpose = Purpose.TRAIN
) -> common_pb2.EpisodeIdentity:
    return identity_to_wire(
        EpisodeIdentity(
            episode_id=episode_id(number, run),
            run_id=run,
            group_id=group_id(number, run),
            member=number % 4,
            group_size=4,
            model=MODEL,
            purpose=purpose,
            split=Split.TRAIN,
            task_slug=f"task-{number % 3}",
            task_digest="d" * 64,
            family="db",
        )
    )


def requested(number: int, *, run: str = "run-1", purpose: Purpose = TRAIN) -> EpisodeRequested:
    return EpisodeRequested(
        episode=identity(number, run=run, purpose=purpose),
        policy=common_pb2.PolicySelector(model=MODEL, channel=common_pb2.CHANNEL_LATEST),
        requested_at=at(number),
    )


def recorded(
    number: int, *, run: str = "run-1", purpose: Purpose = TRAIN, body: BlobRef | None = None
) -> TrajectoryRecorded:
    name = episode_id(number, run)
    return TrajectoryRecorded(
        episode=identity(number, run=run, purpose=purpose),
        body=to_wire(body or BlobRef(objects.trajectory_body(run, name), "00" * 32, 10)),
        sampled_by=common_pb2.VersionSpan(oldest=3, newest=4),
        stop_reason=trajectory_pb2.STOP_REASON_ANSWERED,
        num_turns=2,
        num_sampled_tokens=17,
        lease_id="lease",
        environment_address="127.0.0.1:1",
        recorded_at=at(1000 + number),
    )


def graded(
    number: int,
    *,
    run: str = "run-1",
    purpose: Purpose = TRAIN,
    reward: float = 0.5,
    body: BlobRef | None = None,
) -> TrajectoryGraded:
    record = recorded(number, run=run, purpose=purpose, body=body)
    return TrajectoryGraded(
        episode=record.episode,
        body=record.body,
        sampled_by=record.sampled_by,
        stop_reason=record.stop_reason,
        reward=reward,
        success=reward > 0.5,
        subscores=[trajectory_pb2.Subscore(name="service", weight=1.0, value=reward)],
        num_turns=2,
        num_sampled_tokens=17,
        graded_at=at(2000 + number),
    )


def failed(
    number: int, kind: str = "timeout", *, run: str = "run-1", purpose: Purpose = TRAIN
) -> EpisodeFailed:
    return EpisodeFailed(
        episode=identity(number, run=run, purpose=purpose), kind=kind, failed_at=at(3000 + number)
    )


def cancelled(number: int, *, run: str = "run-1", purpose: Purpose = TRAIN) -> EpisodeCancelled:
    return EpisodeCancelled(
        episode=identity(number, run=run, purpose=purpose),
        reason="run reached its target",
        cancelled_at=at(3000 + number),
    )


def settled(
    numbers: Sequence[int], outcome: str, *, reason: str = "", step: int = 0, run: str = "run-1", by: str = ""
) -> GroupSettled:
    """by: the training run that drew the group from `run`; empty: the group is `run`'s own."""
    return GroupSettled(
        group_id=group_id(numbers[0], run),
        run_id=by or run,
        source_run_id=run if by else "",
        model=MODEL,
        outcome=outcome,
        reason=reason,
        step=step,
        episode_ids=[episode_id(number, run) for number in numbers],
        settled_at=at(4000),
    )


def stepped(numbers: Sequence[int], step: int, *, run: str = "run-1", by: str = "") -> StepCompleted:
    """by: the training run, when it is not the one that planned the episodes."""
    return StepCompleted(
        run_id=by or run,
        model=MODEL,
        step=step,
        version=step + 1,
        trajectory_ids=[entities.trajectory_id(episode_id(number, run)) for number in numbers],
        completed_at=at(4000 + step),
    )
