"""Episodes <-> rows."""

from typing import Any

from sqlalchemy import RowMapping

from trajectory_store.domain import Episode, Identity, Record, Reward, State

_IDENTITY = (
    "episode_id",
    "run_id",
    "group_id",
    "member",
    "model",
    "purpose",
    "split",
    "task_slug",
    "family",
)
_RECORD = (
    "body_key",
    "body_sha256",
    "body_size_bytes",
    "oldest_version",
    "newest_version",
    "stop_reason",
    "num_turns",
    "num_sampled_tokens",
    "recorded_us",
    "trace_id",
)
_GRADE = ("reward", "success", "subscores", "graded_us")
_NO_RECORD: dict[str, Any] = dict.fromkeys(_RECORD)
_NO_GRADE: dict[str, Any] = dict.fromkeys(_GRADE)


def row_of(episode: Episode, changed: int) -> dict[str, Any]:
    """Column values of an episode."""
    row: dict[str, Any] = {name: getattr(episode.identity, name) for name in _IDENTITY}
    row |= _columns(episode.record, _RECORD, _NO_RECORD)
    row |= _columns(episode.grade, _GRADE, _NO_GRADE)
    row.update(
        state=int(episode.state),
        reason=episode.reason,
        step=episode.step,
        since_us=episode.since_us,
        updated_us=episode.updated_us,
        settled=episode.state.is_terminal,
        trained_step=episode.trained_step,
        trained_by_run=episode.trained_by_run,
        in_conflict=episode.in_conflict,
        trained_twice=episode.trained_twice,
        body_checked=episode.body_checked,
        quarantine=episode.quarantine,
        changed=changed,
    )
    return row


def _columns(part: object | None, names: tuple[str, ...], absent: dict[str, Any]) -> dict[str, Any]:
    return absent if part is None else {name: getattr(part, name) for name in names}


def episode_of(row: RowMapping) -> Episode:
    """The episode in a row."""
    return Episode(
        identity=Identity(*(row[name] for name in _IDENTITY)),
        state=State(row["state"]),
        reason=row["reason"],
        step=row["step"],
        since_us=row["since_us"],
        updated_us=row["updated_us"],
        record=None if row["body_key"] is None else Record(*(row[name] for name in _RECORD)),
        grade=None if row["reward"] is None else Reward(*(row[name] for name in _GRADE)),
        trained_step=row["trained_step"],
        trained_by_run=row["trained_by_run"],
        in_conflict=row["in_conflict"],
        trained_twice=row["trained_twice"],
        body_checked=row["body_checked"],
        quarantine=row["quarantine"],
    )
