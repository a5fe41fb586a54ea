"""Episodes <-> rows. Rows of episodes that are known by a group or a step alone have purpose 0."""

from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping

from blob_store import BlobRef
from episodes import EpisodeIdentity
from episodes.identity import PURPOSE_NUMBERS, PURPOSES, SPLIT_NUMBERS, SPLITS
from trajectory_store.adapters.tables import EPISODES
from trajectory_store.domain.facts import (
    Identity,
    LedgerState,
    PartialIdentity,
    TrajectoryGrade,
    TrajectoryRecord,
)
from trajectory_store.domain.ledger import Episode
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.session_labels import Labels

_PARTIAL: Final = ("episode_id", "run_id", "model", "group_id", "tenant")
_OF_TASK: Final = ("task_slug", "task_digest", "family", "taskset", "guided_after")
_WHOLE: Final = (*_PARTIAL, "member", "group_size", *_OF_TASK)
_UNKNOWN: Final[dict[str, Any]] = {
    "member": 0, "group_size": 0, "purpose": 0, "split": 0, **dict.fromkeys((*_OF_TASK, "labels"), ""),
}  # fmt: skip
_RECORD: Final = (
    "oldest_version",
    "newest_version",
    "stop_reason",
    "num_turns",
    "num_sampled_tokens",
    "recorded_us",
    "trace_id",
)
_NO_RECORD: Final[dict[str, Any]] = dict.fromkeys((*_RECORD, "body_key", "body_sha256", "body_size_bytes"))
_GRADE: Final = ("reward", "success", "subscores", "graded_us")
_NO_GRADE: Final[dict[str, Any]] = {**dict.fromkeys(_GRADE), "failure_kind": ""}
_LEDGER: Final = (
    "reason",
    "step",
    "since_us",
    "updated_us",
    "trained_step",
    "trained_by_run",
    "in_conflict",
    "trained_twice",
    "body_checked",
    "quarantine",
    "body_removed_us",
    "body_removed_why",
    "body_deleted",
)


def row_of(episode: Episode, changed: int) -> dict[str, Any]:
    """Column values of an episode."""
    row = _identity_columns(episode.identity) | _values(episode, _LEDGER)
    row |= _record_columns(episode.record)
    row |= _NO_GRADE if episode.grade is None else _grade_columns(episode.grade)
    row.update(state=int(episode.state), settled=episode.state.is_terminal, changed=changed)
    return row


def _values(part: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(part, name) for name in names}


def _identity_columns(identity: Identity) -> dict[str, Any]:
    if isinstance(identity, PartialIdentity):
        return _values(identity, _PARTIAL) | _UNKNOWN
    numbers = {"purpose": int(PURPOSE_NUMBERS[identity.purpose]), "split": int(SPLIT_NUMBERS[identity.split])}
    return _values(identity, _WHOLE) | numbers | {"labels": _between_commas(identity.labels)}


def _between_commas(labels: Labels) -> str:
    return f",{','.join(labels)}," if labels else ""


def has_label(label: str) -> ColumnElement[bool]:
    """Rows of recorded sessions that have this one."""
    return EPISODES.c.labels.contains(f",{label},", autoescape=True)


def _record_columns(record: TrajectoryRecord | None) -> dict[str, Any]:
    if record is None:
        return _NO_RECORD
    body = record.body
    return _values(record, _RECORD) | {
        "body_key": body.key,
        "body_sha256": body.sha256,
        "body_size_bytes": body.size_bytes,
    }


def _grade_columns(grade: TrajectoryGrade) -> dict[str, Any]:
    why = TrajectoryGraded.FromString(grade.subscores)
    return {**_values(grade, _GRADE), "failure_kind": why.failure.kind}


def episode_of(row: RowMapping) -> Episode:
    """The episode in a row."""
    return Episode(
        identity=_identity_of(row),
        state=LedgerState(row["state"]),
        record=_record_of(row),
        grade=None if row["reward"] is None else TrajectoryGrade(*(row[name] for name in _GRADE)),
        **{name: row[name] for name in _LEDGER},
    )


def _identity_of(row: RowMapping) -> Identity:
    if not row["purpose"]:
        return PartialIdentity(**{name: row[name] for name in _PARTIAL})
    whole = {name: row[name] for name in _WHOLE}
    whole["labels"] = tuple(row["labels"].strip(",").split(",")) if row["labels"] else ()
    return EpisodeIdentity(**whole, purpose=PURPOSES[row["purpose"]], split=SPLITS[row["split"]])


def _record_of(row: RowMapping) -> TrajectoryRecord | None:
    if row["body_key"] is None:
        return None
    body = BlobRef(row["body_key"], row["body_sha256"], row["body_size_bytes"])
    return TrajectoryRecord(body, **{name: row[name] for name in _RECORD})
