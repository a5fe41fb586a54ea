"""The tables as SQLAlchemy Core sees them; `migrations/` makes them. Rows below a run have its tenant.

`key` is what the code calls a column that was made under another name.
"""

import sqlalchemy as sa

from sql_store import UtcDateTime, columns

METADATA = sa.MetaData()

TASKSET = sa.Table(
    "taskset",
    METADATA,
    *columns("tenant storage_key name digest split source", sa.String),
    *columns("revision num_tasks", sa.BigInteger),
    *columns("registered_at deleted_at", UtcDateTime),
)
TASK = sa.Table(
    "task",
    METADATA,
    *columns("tenant taskset slug scenario args_json family digest", sa.String),
    *columns("position", sa.Integer),
)
CLAIM = sa.Table(
    "task_claim",
    METADATA,
    *columns("tenant digest split claimed_by", sa.String),
    *columns("claimed_at", UtcDateTime),
)
RUN = sa.Table(
    "run",
    METADATA,
    *columns(
        "tenant run_id request_id model purpose split state ending spec taskset taskset_digest", sa.String
    ),
    *columns("trace_id trace failure recent_ends source_digest", sa.String),
    *columns("taskset_revision num_tasks step policy_version next_position", sa.BigInteger),
    *columns("num_graded num_successes num_guided num_new", sa.BigInteger),
    *columns("reward_sum engine_s environment_s trainer_s", sa.Float),
    *columns("submitted_at resumed_at ending_since finished_at released_at removed_at held_at", UtcDateTime),
    *columns("summary final_counts", sa.String),
    *columns("is_emptied is_by_platform", sa.Boolean),
)
GROUP = sa.Table(
    "task_group",
    METADATA,
    *columns("group_id run_id taskset outcome guided_after", sa.String),
    *columns("position task_position new_task expected_members num_graded at_step", sa.BigInteger),
    *columns("is_open", sa.Boolean),
    *columns("settled_at", UtcDateTime),
)
EPISODE = sa.Table(
    "episode",
    METADATA,
    *columns("episode_id run_id group_id taskset split state reason detail", sa.String),
    *columns("body_key body_sha256 guided_after", sa.String),
    sa.Column("guided_by", sa.String, key="guidance_kinds"),
    *columns("member attempt num_turns stop_reason", sa.Integer),
    *columns("task_position new_task oldest_version newest_version num_dispatches body_size", sa.BigInteger),
    *columns("reward engine_s environment_s", sa.Float),
    *columns("success shadow", sa.Boolean),
    *columns("requested_at dispatched_at opened_at graded_at settled_at", UtcDateTime),
)
RUN_COUNT = sa.Table(
    "run_count", METADATA, *columns("run_id kind value", sa.String), sa.Column("num", sa.BigInteger)
)
"""Written by triggers of EPISODE and GROUP alone. kind: `episode`, whose value is a state; `open_group`;
`group`, whose value is an outcome."""
TRACKED = sa.Table(
    "tracked_rate",
    METADATA,
    *columns("run_id taskset state eval_run_id detail outcomes", sa.String),
    *columns("step version num_trained", sa.BigInteger),
    *columns("reward drift engine_s", sa.Float),
    *columns("noted_at", UtcDateTime),
)
RUN_MIX = sa.Table(
    "run_mix",
    METADATA,
    *columns("run_id name taskset source_digest", sa.String),
    sa.Column("place", sa.Integer),
    *columns("num_tasks num_groups num_guided num_new num_trained num_left_out", sa.BigInteger),
    *columns("num_in_a_row num_graded num_successes", sa.BigInteger),
    sa.Column("reward_sum", sa.Float),
)
NEW_TASK = sa.Table(
    "new_task",
    METADATA,
    *columns("run_id taskset scenario family parent_slug parent_digest parent_args", sa.String),
    *columns("state detail slug args_json digest proposed_by", sa.String),
    *columns("number task_position seed newest", sa.BigInteger),
    *columns("num_groups num_trained num_left_out num_flat num_in_a_row", sa.BigInteger),
    *columns("num_graded num_successes", sa.BigInteger),
    sa.Column("solved", sa.Boolean),
)
OFFERED_SESSION = sa.Table(
    "offered_session",
    METADATA,
    *columns("run_id episode_id group_id task_digest body_key body_sha256", sa.String),
    *columns("member stop_reason", sa.Integer),
    *columns("oldest_version newest_version body_size", sa.BigInteger),
    *columns("reward", sa.Float),
    *columns("success", sa.Boolean),
    *columns("graded_at", UtcDateTime),
)
SOURCE_GROUP = sa.Table(
    "source_group",
    METADATA,
    *columns("group_id run_id source_run_id state reason", sa.String),
    *columns("step", sa.BigInteger),
    *columns("ended_at offered_at settled_at", UtcDateTime),
)
TASKSET_CHECK = sa.Table(
    "taskset_check",
    METADATA,
    *columns("tenant taskset kind source_digest checked_by stopped findings", sa.String),
    sa.Column("model_family", sa.String, key="model"),
    *columns("num_tasks num_looked num_plays num_findings", sa.BigInteger),
    *columns("checked_at", UtcDateTime),
)
WATCHED_TIME = sa.Table(
    "watched_time", METADATA, sa.Column("work", sa.String), *columns("since until", UtcDateTime)
)
SERVER_SECRET = sa.Table(
    "server_secret",
    METADATA,
    *columns("tenant name key_id set_by", sa.String),
    sa.Column("sealed", sa.LargeBinary),
    *columns("set_at", UtcDateTime),
    sa.Column("environments", sa.JSON),
)
