"""Events -> what they say about episodes."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message

from blob_store.ref import from_wire as blob_from_wire
from episodes import EpisodeIdentity, GroupOutcome, MalformedIdentity, identity_from_wire
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


def facts_of(message: Message, published_at: datetime, traceparent: str) -> Iterator[EpisodeFact]:
    """What one event says, episode by episode; nothing where it is about no episode. Raises MalformedFact."""
    reader = _READERS.get(type(message))
    return iter(()) if reader is None else reader(message, us_of(published_at), traceparent)


def _identity(message: Any) -> EpisodeIdentity:
    try:
        return identity_from_wire(message.episode)
    except MalformedIdentity as error:
        raise MalformedFact(f"{message.DESCRIPTOR.name}.episode: {error}") from error


def _requested(message: taskset_events.EpisodeRequested, at_us: int, _: str) -> Iterator[EpisodeFact]:
    yield requested(_identity(message), _us(message, "requested_at", at_us))


def _record(message: Any, recorded_us: int, traceparent: str) -> TrajectoryRecord:
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
        trace_id=_trace_id(traceparent),
    )


def _recorded(
    message: trajectory_events.TrajectoryRecorded, at_us: int, traceparent: str
) -> Iterator[EpisodeFact]:
    at_us = _us(message, "recorded_at", at_us)
    yield recorded(_identity(message), _record(message, at_us, traceparent))


def _graded(
    message: trajectory_events.TrajectoryGraded, at_us: int, traceparent: str
) -> Iterator[EpisodeFact]:
    at_us = _us(message, "graded_at", at_us)
    tree = trajectory_events.TrajectoryGraded(subscores=message.subscores).SerializeToString()
    grade = TrajectoryGrade(message.reward, message.success, tree, at_us)
    yield graded(_identity(message), _record(message, at_us, traceparent), grade)


def _failed(message: taskset_events.EpisodeFailed, at_us: int, _: str) -> Iterator[EpisodeFact]:
    at_us = _us(message, "failed_at", at_us)
    yield settled(_identity(message), LedgerState.FAILED, at_us, reason=message.kind or "unknown")


def _cancelled(message: taskset_events.EpisodeCancelled, at_us: int, _: str) -> Iterator[EpisodeFact]:
    at_us = _us(message, "cancelled_at", at_us)
    yield settled(_identity(message), LedgerState.CANCELLED, at_us, reason=message.reason)


def _group_settled(message: training_events.GroupSettled, at_us: int, _: str) -> Iterator[EpisodeFact]:
    """A released group stays evaluated, so the event changes nothing here."""
    if message.outcome not in tuple(GroupOutcome):
        expected = ", ".join(GroupOutcome)
        raise MalformedFact(f"GroupSettled.outcome is {message.outcome!r}, expected one of {expected}")
    if message.outcome == GroupOutcome.RELEASED:
        return
    at_us = _us(message, "settled_at", at_us)
    own_run = message.source_run_id or message.run_id
    for episode_id in message.episode_ids:
        identity = PartialIdentity(episode_id, own_run, message.model, message.group_id)
        if message.outcome == GroupOutcome.TRAINED:
            yield trained(identity, at_us, step=message.step, by_run=message.run_id)
        else:
            yield settled(identity, LedgerState.EXCLUDED, at_us, reason=message.reason)


def _step_completed(message: training_events.StepCompleted, at_us: int, _: str) -> Iterator[EpisodeFact]:
    at_us = _us(message, "completed_at", at_us)
    for trajectory_id in message.trajectory_ids:
        identity = PartialIdentity(episode_of(trajectory_id), message.run_id, message.model)
        yield trained(identity, at_us, step=message.step, by_run=message.run_id)


_READERS: Final[Mapping[type[Message], Callable[[Any, int, str], Iterator[EpisodeFact]]]] = {
    taskset_events.EpisodeRequested: _requested,
    taskset_events.EpisodeFailed: _failed,
    taskset_events.EpisodeCancelled: _cancelled,
    trajectory_events.TrajectoryRecorded: _recorded,
    trajectory_events.TrajectoryGraded: _graded,
    training_events.GroupSettled: _group_settled,
    training_events.StepCompleted: _step_completed,
}


def _trace_id(traceparent: str) -> str:
    """The OpenTelemetry trace in a W3C traceparent; empty where nothing was traced."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""


def _us(message: Any, field: str, otherwise_us: int) -> int:
    """A moment that the event carries, or the one at which the stream stored it."""
    return int(getattr(message, field).ToMicroseconds()) if message.HasField(field) else otherwise_us


def us_of(moment: datetime) -> int:
    """Microseconds since 1970."""
    return int((moment - _EPOCH).total_seconds() * 1_000_000)
