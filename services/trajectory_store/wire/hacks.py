"""Alarms of the monitors, and reviews of people, on the wire."""

from google.protobuf.timestamp_pb2 import Timestamp

from identities.entities import trajectory_id
from service_kit.errors import InvalidRequest
from trajectory_store.domain.hacks import KeptAlarm, Review, SignatureBatch, Verdict
from upcycle.api.trajectory.v1 import service_pb2 as pb


def alarm_to_wire(kept: KeptAlarm) -> pb.RewardAlarm:
    """One alarm."""
    alarm = kept.alarm
    message = pb.RewardAlarm(
        run_id=kept.run_id,
        model=kept.model,
        kind=alarm.kind.value,
        text=alarm.text,
        value=alarm.value,
        limit=alarm.limit,
        since_version=alarm.since_version,
        version=alarm.version,
        trajectory_ids=alarm.trajectories,
        dismissed_by=kept.dismissed_by,
        note=kept.note,
    )
    message.raised_at.CopyFrom(_moment(kept.raised_us))
    if kept.cleared_us is not None:
        message.cleared_at.CopyFrom(_moment(kept.cleared_us))
    if kept.dismissed_us is not None:
        message.dismissed_at.CopyFrom(_moment(kept.dismissed_us))
    return message


def review_to_wire(review: Review) -> pb.Review:
    """One verdict."""
    message = pb.Review(
        trajectory_id=trajectory_id(review.episode_id),
        run_id=review.run_id,
        verdict=pb.ReviewVerdict.ValueType(review.verdict),
        reviewer=review.reviewer,
        note=review.note,
    )
    message.reviewed_at.CopyFrom(_moment(review.reviewed_us))
    return message


def batch_to_wire(batch: SignatureBatch) -> pb.SignatureBatch:
    """Trajectories of one signature."""
    return pb.SignatureBatch(
        signature=batch.signature,
        monitors=batch.monitors,
        num_trajectories=batch.num_episodes,
        highest_reward=batch.highest_reward,
        mean_reward=batch.mean_reward,
        trajectory_id=trajectory_id(batch.best),
    )


def verdict_from_wire(number: int) -> Verdict:
    """Raises InvalidRequest for none."""
    try:
        return Verdict(number)
    except ValueError as error:
        raise InvalidRequest(f"verdict is {number}: choose SOLVED, HACKED or UNCLEAR") from error


def _moment(at_us: int) -> Timestamp:
    moment = Timestamp()
    moment.FromMicroseconds(at_us)
    return moment
