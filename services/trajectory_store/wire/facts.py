"""Events -> what they say about episodes."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message

from blob_store.ref import from_wire as blob_from_wire
from episodes import EpisodeIdentity, GroupOutcome, MalformedIdentity, identity_from_wire
from event_bus import Delivery
from identities.entities import episode_of
from trajectory_store.domain.facts import (
    EpisodeFact,
    LedgerState,
    PartialIdentity,
    TrajectoryGrade,
    TrajectoryRecord,
    graded,
    recorded,
    requested,
    settled,
    trained,
)
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MalformedFact(ValueError):
    """An event that names no episode; the text says which field."""


def _identity(message: Any) -> EpisodeIdentity:
    try:
        return identity_from_wire(message.episode)
    except MalformedIdentity as error:
        raise MalformedFact(f"{message.DESCRIPTOR.name}.episode: {error}") from error


def on_requested(message: taskset_events.EpisodeRequested, delivery: Delivery[Any]) -> Iterator[EpisodeFact]:
    yield requested(_identity(message), _us(message, "requested_at", delivery))


def _record(message: Any, recorded_us: int, delivery: Delivery[Any]) -> TrajectoryRecord:
    if not message.body.key:
        raise MalformedFact(f"{message.DESCRIPTOR.name}.body has no key")
    return TrajectoryRecord(
        body=blob_from_wire(message.body),
        oldest_version=message.sampled_by.oldest,
        newest_version=message.sampled_by.newest,
        stop_reason=message.stop_reason,
        num_turns=message.num_turns,
        num_sampled_tokens=message.num_sampled_tokens,
        recorded_us=recorded_us,
        trace_id=_trace_id(delivery.headers.get("traceparent", "")),
    )


def on_recorded(
    message: trajectory_events.TrajectoryRecorded, delivery: Delivery[Any]
) -> Iterator[EpisodeFact]:
    at_us = _us(message, "recorded_at", delivery)
    yield recorded(_identity(message), _record(message, at_us, delivery))


def on_graded(message: trajectory_events.TrajectoryGraded, delivery: Delivery[Any]) -> Iterator[EpisodeFact]:
    at_us = _us(message, "graded_at", delivery)
    why = trajectory_events.TrajectoryGraded(subscores=message.subscores, turn_rewards=message.turn_rewards)
    if message.HasField("failure"):
        why.failure.CopyFrom(message.failure)
    tree = why.SerializeToString()
    grade = TrajectoryGrade(message.reward, message.success, tree, at_us)
    yield graded(_identity(message), _record(message, at_us, delivery), grade)


def on_session_opened(
    message: trajectory_events.RecordedSessionOpened, delivery: Delivery[Any]
) -> Iterator[EpisodeFact]:
    yield requested(_identity(message), _us(message, "opened_at", delivery))


def on_session_expired(
    message: trajectory_events.RecordedSessionExpired, delivery: Delivery[Any]
) -> Iterator[EpisodeFact]:
    at_us = _us(message, "expired_at", delivery)
    yield settled(_identity(message), LedgerState.EXCLUDED, at_us, reason=message.reason)


def on_failed(message: taskset_events.EpisodeFailed, delivery: Delivery[Any]) -> Iterator[EpisodeFact]:
    at_us = _us(message, "failed_at", delivery)
    yield settled(_identity(message), LedgerState.FAILED, at_us, reason=message.kind or "unknown")


def on_cancelled(message: taskset_events.EpisodeCancelled, delivery: Delivery[Any]) -> Iterator[EpisodeFact]:
    at_us = _us(message, "cancelled_at", delivery)
    yield settled(_identity(message), LedgerState.CANCELLED, at_us, reason=message.reason)


def on_group_settled(message: training_events.GroupSettled, delivery: Delivery[Any]) -> Iterator[EpisodeFact]:
    """A released group stays evaluated, so the event changes nothing here."""
    if message.outcome not in tuple(GroupOutcome):
        expected = ", ".join(GroupOutcome)
        raise MalformedFact(f"GroupSettled.outcome is {message.outcome!r}, expected one of {expected}")
    if message.outcome == GroupOutcome.RELEASED:
        return
    at_us = _us(message, "settled_at", delivery)
    own_run = message.source_run_id or message.run_id
    for episode_id in message.episode_ids:
        identity = PartialIdentity(episode_id, own_run, message.model, message.group_id)
        if message.outcome == GroupOutcome.TRAINED:
            yield trained(identity, at_us, step=message.step, by_run=message.run_id)
        else:
            yield settled(identity, LedgerState.EXCLUDED, at_us, reason=message.reason)


def on_step_completed(
    message: training_events.StepCompleted, delivery: Delivery[Any]
) -> Iterator[EpisodeFact]:
    at_us = _us(message, "completed_at", delivery)
    for trajectory_id in message.trajectory_ids:
        identity = PartialIdentity(episode_of(trajectory_id), message.run_id, message.model)
        yield trained(identity, at_us, step=message.step, by_run=message.run_id)


def nothing(_: Message, __: Delivery[Any]) -> Iterator[EpisodeFact]:
    """An event about no episode."""
    return iter(())


def _trace_id(traceparent: str) -> str:
    """The OpenTelemetry trace in a W3C traceparent; empty where nothing was traced."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""


def _us(message: Any, field: str, delivery: Delivery[Any]) -> int:
    """A moment that the event carries, or the one at which the stream stored it."""
    stored = us_of(delivery.published_at)
    return int(getattr(message, field).ToMicroseconds()) if message.HasField(field) else stored


def us_of(moment: datetime) -> int:
    """Microseconds since 1970."""
    return int((moment - _EPOCH).total_seconds() * 1_000_000)
