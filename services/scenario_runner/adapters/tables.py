"""The tables as SQLAlchemy Core sees them; `migrations/` makes them."""

from typing import Any

import sqlalchemy as sa

from sql_store import UtcDateTime

METADATA = sa.MetaData()


def _columns(names: str, kind: type[sa.types.TypeEngine[Any]]) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names.split()]


def _times(names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, UtcDateTime()) for name in names.split()]


TASKSET = sa.Table(
    "taskset",
    METADATA,
    *_columns("tenant storage_key name digest split source", sa.String),
    *_columns("revision num_tasks", sa.BigInteger),
    *_times("registered_at"),
)
TASK = sa.Table(
    "task",
    METADATA,
    *_columns("tenant taskset slug scenario args_json family digest", sa.String),
    *_columns("position", sa.Integer),
)
CLAIM = sa.Table(
    "task_claim",
    METADATA,
    sa.Column("tenant", sa.String, primary_key=True),
    sa.Column("digest", sa.String, primary_key=True),
    *_columns("split claimed_by", sa.String),
    *_times("claimed_at"),
)
RUN = sa.Table(
    "run",
    METADATA,
    *_columns(
        "tenant run_id request_id model purpose split state ending spec taskset taskset_digest", sa.String
    ),
    *_columns("trace_id trace failure", sa.String),
    *_columns("taskset_revision num_tasks step policy_version next_position", sa.BigInteger),
    *_columns("num_graded num_successes", sa.BigInteger),
    *_columns("reward_sum engine_s environment_s trainer_s", sa.Float),
    *_times("submitted_at ending_since finished_at"),
)
GROUP = sa.Table(
    "task_group",
    METADATA,
    *_columns("group_id run_id taskset outcome", sa.String),
    *_columns("position task_position expected_members num_graded at_step", sa.BigInteger),
    *_columns("is_open", sa.Boolean),
    *_times("settled_at"),
)
EPISODE = sa.Table(
    "episode",
    METADATA,
    *_columns("episode_id run_id group_id taskset split state reason detail", sa.String),
    *_columns("body_key body_sha256", sa.String),
    *_columns("member attempt num_turns stop_reason", sa.Integer),
    *_columns("task_position oldest_version newest_version num_dispatches body_size", sa.BigInteger),
    *_columns("reward engine_s environment_s", sa.Float),
    *_columns("success", sa.Boolean),
    *_times("requested_at dispatched_at opened_at graded_at settled_at"),
)
SOURCE_GROUP = sa.Table(
    "source_group",
    METADATA,
    *_columns("group_id run_id source_run_id state reason", sa.String),
    *_columns("step", sa.BigInteger),
    *_times("ended_at offered_at settled_at"),
)
