"""protobuf <-> domain, nothing else."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from trajectory_store.domain import (
    TRAJECTORY_PREFIX,
    Episode,
    Fact,
    Filter,
    Identity,
    Ledger,
    PageKey,
    Record,
    Reward,
    State,
    episode_id_of,
    graded,
    recorded,
    requested,
    settled,
    trained,
)
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events
from upcycle.api.trajectory.v1 import service_pb2, trajectory_pb2

_US: Final = 1_000_000
_TRAINED: Final = "trained"
_RELEASED: Final = "released"
_GROUP_OUTCOMES: Final = (_TRAINED, "excluded", _RELEASED)


class MalformedFact(ValueError):
    """An event that names no episode; the text says which field."""


class MalformedRequest(ValueError):
    """A request field that means nothing; the text says which."""


def facts_of(message: Message, published_at: datetime, traceparent: str) -> Iterator[Fact]:
    """What one event says, episode by episode; nothing where it is about no episode. Raises MalformedFact."""
    reader = _READERS.get(type(message))
    return iter(()) if reader is None else reader(message, _us_of(published_at), traceparent)


def _identity(message: Any) -> Identity:
    if not message.episode_id:
        raise MalformedFact(f"{message.DESCRIPTOR.name}.episode_id is empty")
    if not message.run_id:
        raise MalformedFact(f"{message.DESCRIPTOR.name}.run_id is empty")
    return Identity(
        message.episode_id, message.run_id, message.group_id, message.member, message.model, message.purpose
    )


def _requested(message: taskset_events.EpisodeRequested, at_us: int, _: str) -> Iterator[Fact]:
    if not message.episode_id or not message.run_id:
        raise MalformedFact("EpisodeRequested.episode_id or run_id is empty")
    yield requested(
        Identity(
            message.episode_id,
            message.run_id,
            message.group_id,
            message.member,
            message.policy.model,
            message.purpose,
            message.split,
            message.task_slug,
            message.family,
        ),
        _us(message, "requested_at", at_us),
    )


def _trajectory_identity(message: Any) -> Identity:
    if not message.episode_id or not message.run_id or not message.body.key:
        raise MalformedFact(f"{message.DESCRIPTOR.name} lacks episode_id, run_id or body")
    return Identity(
        message.episode_id,
        message.run_id,
        message.group_id,
        message.member,
        message.model,
        message.purpose,
        message.split,
        message.task_slug,
        message.family,
    )


def _record(message: Any, recorded_us: int, trace_id: str) -> Record:
    return Record(
        body_key=message.body.key,
        body_sha256=message.body.sha256,
        body_size_bytes=message.body.size_bytes,
        oldest_version=message.sampled_by.oldest,
        newest_version=message.sampled_by.newest,
        stop_reason=message.stop_reason,
        num_turns=message.num_turns,
        num_sampled_tokens=message.num_sampled_tokens,
        recorded_us=recorded_us,
        trace_id=trace_id,
    )


def _recorded(message: trajectory_events.TrajectoryRecorded, at_us: int, traceparent: str) -> Iterator[Fact]:
    at_us = _us(message, "recorded_at", at_us)
    yield recorded(_trajectory_identity(message), _record(message, at_us, _trace_id(traceparent)))


def _graded(message: trajectory_events.TrajectoryGraded, at_us: int, traceparent: str) -> Iterator[Fact]:
    at_us = _us(message, "graded_at", at_us)
    tree = trajectory_events.TrajectoryGraded(subscores=message.subscores).SerializeToString()
    yield graded(
        _trajectory_identity(message),
        _record(message, at_us, _trace_id(traceparent)),
        Reward(message.reward, message.success, tree, at_us),
    )


def _failed(message: taskset_events.EpisodeFailed, at_us: int, _: str) -> Iterator[Fact]:
    at_us = _us(message, "failed_at", at_us)
    yield settled(_identity(message), State.FAILED, at_us, reason=message.kind or "unknown")


def _cancelled(message: taskset_events.EpisodeCancelled, at_us: int, _: str) -> Iterator[Fact]:
    identity = Identity(message.episode_id, message.run_id, message.group_id, model=message.model)
    if not message.episode_id or not message.run_id:
        raise MalformedFact("EpisodeCancelled.episode_id or run_id is empty")
    at_us = _us(message, "cancelled_at", at_us)
    yield settled(identity, State.CANCELLED, at_us, reason=message.reason)


def _group_settled(message: training_events.GroupSettled, at_us: int, _: str) -> Iterator[Fact]:
    """A released group stays what its evaluation made it: that says nothing about its episodes."""
    if message.outcome not in _GROUP_OUTCOMES:
        expected = ", ".join(_GROUP_OUTCOMES)
        raise MalformedFact(f"GroupSettled.outcome is {message.outcome!r}, expected one of {expected}")
    if message.outcome == _RELEASED:
        return
    at_us = _us(message, "settled_at", at_us)
    own_run = message.source_run_id or message.run_id
    for episode_id in message.episode_ids:
        identity = Identity(episode_id, own_run, message.group_id, model=message.model)
        if message.outcome == _TRAINED:
            yield trained(identity, at_us, step=message.step, by_run=message.run_id)
        else:
            yield settled(identity, State.EXCLUDED, at_us, reason=message.reason)


def _step_completed(message: training_events.StepCompleted, at_us: int, _: str) -> Iterator[Fact]:
    at_us = _us(message, "completed_at", at_us)
    for trajectory_id in message.trajectory_ids:
        identity = Identity(episode_id_of(trajectory_id), message.run_id, model=message.model)
        yield trained(identity, at_us, step=message.step, by_run=message.run_id)


_READERS: Final[Mapping[type[Message], Callable[[Any, int, str], Iterator[Fact]]]] = {
    taskset_events.EpisodeRequested: _requested,
    taskset_events.EpisodeFailed: _failed,
    taskset_events.EpisodeCancelled: _cancelled,
    trajectory_events.TrajectoryRecorded: _recorded,
    trajectory_events.TrajectoryGraded: _graded,
    training_events.GroupSettled: _group_settled,
    training_events.StepCompleted: _step_completed,
}


def summary_to_wire(episode: Episode) -> trajectory_pb2.TrajectorySummary:
    """The row as the API shows it."""
    identity, record, grade = episode.identity, episode.record, episode.grade
    summary = trajectory_pb2.TrajectorySummary(
        trajectory_id=TRAJECTORY_PREFIX + identity.episode_id,
        episode_id=identity.episode_id,
        run_id=identity.run_id,
        group_id=identity.group_id,
        member=identity.member,
        model=identity.model,
        purpose=common_pb2.Purpose.ValueType(identity.purpose),
        split=common_pb2.Split.ValueType(identity.split),
        task_slug=identity.task_slug,
        family=identity.family,
        ledger=entry_to_wire(episode),
        quarantine_reason=episode.quarantine,
    )
    if record is not None:
        _add_record(summary, record)
    if grade is not None:
        tree = trajectory_events.TrajectoryGraded.FromString(grade.subscores).subscores
        summary.graded, summary.reward, summary.success = True, grade.reward, grade.success
        summary.subscores.extend(tree)
        summary.graded_at.CopyFrom(_timestamp(grade.graded_us))
    return summary


def _add_record(summary: trajectory_pb2.TrajectorySummary, record: Record) -> None:
    summary.body.key, summary.body.sha256 = record.body_key, record.body_sha256
    summary.body.size_bytes = record.body_size_bytes
    summary.sampled_by.oldest, summary.sampled_by.newest = record.oldest_version, record.newest_version
    summary.stop_reason = trajectory_pb2.StopReason.ValueType(record.stop_reason)
    summary.num_turns, summary.num_sampled_tokens = record.num_turns, record.num_sampled_tokens
    summary.recorded_at.CopyFrom(_timestamp(record.recorded_us))
    summary.trace_id = record.trace_id


def entry_to_wire(episode: Episode) -> trajectory_pb2.LedgerEntry:
    """Where an episode is."""
    return trajectory_pb2.LedgerEntry(
        episode_id=episode.identity.episode_id,
        run_id=episode.identity.run_id,
        group_id=episode.identity.group_id,
        state=trajectory_pb2.LedgerState.ValueType(episode.state),
        reason=episode.reason,
        step=episode.step,
        requested_at=_timestamp(episode.since_us),
        updated_at=_timestamp(episode.updated_us),
        trained_by_run=episode.trained_by_run if episode.state is State.TRAINED else "",
    )


def ledger_to_wire(ledger: Ledger, now: datetime) -> service_pb2.GetLedgerResponse:
    """The equation."""
    oldest_us = ledger.oldest_unsettled_us
    return service_pb2.GetLedgerResponse(
        requested=ledger.requested,
        settled=ledger.settled,
        in_flight=ledger.in_flight,
        by_state=ledger.by_label,
        unsettled=map(entry_to_wire, ledger.unsettled),
        conflicts=ledger.conflicts,
        trained_twice=ledger.trained_twice,
        oldest_unsettled_s=0.0 if oldest_us is None else max(0.0, (_us_of(now) - oldest_us) / _US),
    )


def quarantined_to_wire(episode: Episode, reason: str) -> tuple[trajectory_events.TrajectoryQuarantined, str]:
    """The fact that a trajectory's body cannot be used, and the event's id."""
    identity = episode.identity
    trajectory_id = TRAJECTORY_PREFIX + identity.episode_id
    event = trajectory_events.TrajectoryQuarantined(
        trajectory_id=trajectory_id,
        episode_id=identity.episode_id,
        run_id=identity.run_id,
        group_id=identity.group_id,
        model=identity.model,
        reason=reason,
    )
    return event, f"trajectory.quarantined/{trajectory_id}"


def filter_from_wire(message: service_pb2.TrajectoryFilter) -> Filter:
    """The filter of a request. Raises MalformedRequest."""
    known = trajectory_pb2.LedgerState.values()
    if message.state not in known:
        raise MalformedRequest(f"filter.state is {message.state}, expected one of {known}")
    return Filter(
        run_id=message.run_id,
        model=message.model,
        group_id=message.group_id,
        task_slug=message.task_slug,
        purpose=message.purpose,
        min_reward=message.min_reward if message.HasField("min_reward") else None,
        success=message.success if message.HasField("success") else None,
        state=State(message.state) if message.state else None,
    )


def page_token(key: PageKey | None) -> str:
    """Opaque to callers; empty: there is no next page."""
    if key is None:
        return ""
    return base64.urlsafe_b64encode(json.dumps([key.recorded_us, key.episode_id]).encode()).decode()


def page_key(token: str) -> PageKey | None:
    """What `page_token` made. Raises MalformedRequest."""
    if not token:
        return None
    try:
        recorded_us, episode_id = json.loads(base64.urlsafe_b64decode(token.encode()))
        return PageKey(int(recorded_us), str(episode_id))
    except (ValueError, TypeError) as error:
        raise MalformedRequest(
            f"page_token {token[:40]!r} is not one of ours: pass next_page_token unchanged"
        ) from error


def _trace_id(traceparent: str) -> str:
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""


def _us(message: Any, field: str, otherwise_us: int) -> int:
    """A moment that the event carries, or the one at which the stream stored it."""
    return int(getattr(message, field).ToMicroseconds()) if message.HasField(field) else otherwise_us


def _us_of(moment: datetime) -> int:
    return int((moment - _EPOCH).total_seconds() * _US)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _timestamp(at_us: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(at_us)
    return stamp
