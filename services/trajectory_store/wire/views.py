"""Requests and answers of TrajectoryService, and the fact that the store publishes."""

import base64
import json
import math
from datetime import datetime
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from blob_store.ref import to_wire as blob_to_wire
from episodes import EpisodeIdentity, identity_to_wire
from episodes.identity import PURPOSES
from service_kit.errors import InvalidRequest
from trajectory_store.domain.facts import LedgerState, TrajectoryRecord
from trajectory_store.domain.ledger import Episode, Ledger
from trajectory_store.domain.queries import PageKey, TrajectoryFilter
from trajectory_store.wire.facts import us_of
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events
from upcycle.api.trajectory.v1 import service_pb2, trajectory_pb2
from upcycle.session_labels import Labels, checked

_US: Final = 1_000_000


def _whole_identity(episode: Episode) -> common_pb2.EpisodeIdentity:
    if not isinstance(episode.identity, EpisodeIdentity):
        raise AssertionError(f"{episode.identity.episode_id} has a trajectory and no complete identity")
    return identity_to_wire(episode.identity)


def summary_to_wire(episode: Episode) -> trajectory_pb2.TrajectorySummary:
    """The row of a recorded trajectory."""
    record, grade = episode.record, episode.grade
    summary = trajectory_pb2.TrajectorySummary(
        episode=_whole_identity(episode), ledger=entry_to_wire(episode), quarantine_reason=episode.quarantine
    )
    if record is not None:
        _add_record(summary, record)
    if episode.body_removed_us is not None:
        summary.body_removed_reason = episode.body_removed_why
        summary.body_removed_at.CopyFrom(_timestamp(episode.body_removed_us))
    if grade is not None:
        why = trajectory_events.TrajectoryGraded.FromString(grade.subscores)
        summary.graded, summary.reward, summary.success = True, grade.reward, grade.success
        summary.subscores.extend(why.subscores)
        summary.turn_rewards.extend(why.turn_rewards)
        if why.HasField("failure"):
            summary.failure.CopyFrom(why.failure)
        summary.graded_at.CopyFrom(_timestamp(grade.graded_us))
    return summary


def _add_record(summary: trajectory_pb2.TrajectorySummary, record: TrajectoryRecord) -> None:
    summary.body.CopyFrom(blob_to_wire(record.body))
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
        trained_by_run=episode.trained_by_run if episode.state is LedgerState.TRAINED else "",
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
        oldest_unsettled_s=0.0 if oldest_us is None else max(0.0, (us_of(now) - oldest_us) / _US),
    )


def quarantined_to_wire(episode: Episode, reason: str) -> trajectory_events.TrajectoryQuarantined:
    """The fact that a trajectory's body cannot be used."""
    return trajectory_events.TrajectoryQuarantined(episode=_whole_identity(episode), reason=reason)


def filter_from_wire(message: service_pb2.TrajectoryFilter) -> TrajectoryFilter:
    """The filter of a request. Raises InvalidRequest."""
    known = trajectory_pb2.LedgerState.values()
    if message.state not in known:
        raise InvalidRequest(f"filter.state is {message.state}, expected one of {known}")
    if message.purpose and message.purpose not in PURPOSES:
        raise InvalidRequest(f"filter.purpose is {message.purpose}, expected one of {sorted(PURPOSES)}")
    _check_rewards(message)
    return TrajectoryFilter(
        run_id=message.run_id,
        model=message.model,
        group_id=message.group_id,
        task_slug=message.task_slug,
        purpose=PURPOSES.get(message.purpose),
        min_reward=message.min_reward if message.HasField("min_reward") else None,
        success=message.success if message.HasField("success") else None,
        state=LedgerState(message.state) if message.state else None,
        family=message.family,
        max_reward=message.max_reward if message.HasField("max_reward") else None,
        failure_kind=message.failure_kind,
        version=message.version if message.HasField("version") else None,
        recorded_sessions=message.recorded_sessions,
        session_group=message.session_group,
        labels=_labels(message),
        graded_since_us=_us(message.graded_since) if message.HasField("graded_since") else None,
        graded_before_us=_us(message.graded_before) if message.HasField("graded_before") else None,
    )


def _labels(message: service_pb2.TrajectoryFilter) -> Labels:
    try:
        return checked(message.labels)
    except ValueError as error:
        raise InvalidRequest(f"filter.labels: {error}") from error


def _us(stamp: Timestamp) -> int:
    return stamp.ToMicroseconds()


def _check_rewards(message: service_pb2.TrajectoryFilter) -> None:
    low = message.min_reward if message.HasField("min_reward") else -math.inf
    high = message.max_reward if message.HasField("max_reward") else math.inf
    if not low <= high:  # nor is anything at least, or at most, nan
        raise InvalidRequest(
            f"filter.min_reward is {low:g} and filter.max_reward {high:g}: nothing is between"
        )


def page_token(key: PageKey | None) -> str:
    """Opaque to callers; empty: there is no next page."""
    if key is None:
        return ""
    return base64.urlsafe_b64encode(json.dumps([key.recorded_us, key.episode_id]).encode()).decode()


def page_key(token: str) -> PageKey | None:
    """What `page_token` made. Raises InvalidRequest."""
    if not token:
        return None
    try:
        recorded_us, episode_id = json.loads(base64.urlsafe_b64decode(token.encode()))
        return PageKey(int(recorded_us), str(episode_id))
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"page_token {token[:40]!r} is not one of ours: pass next_page_token unchanged"
        ) from error


def _timestamp(at_us: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMicroseconds(at_us)
    return stamp
