"""The tables as SQLAlchemy Core sees them; `migrations/` makes them. Moments are microseconds since 1970,
which both databases sort alike."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    text,
)

from sql_store import columns, outbox_table

METADATA = MetaData()

# Queries must use these very texts: SQLite takes a partial index only for the condition it was made with.
UNSETTLED = text("NOT settled")
UNCHECKED = text("NOT body_checked AND body_key IS NOT NULL")
BODIES = text("settled AND body_key IS NOT NULL AND body_removed_us IS NULL")
BODIES_GOING = text("body_removed_us IS NOT NULL AND NOT body_deleted")
WITHOUT_BODY = text("settled AND (body_key IS NULL OR body_deleted)")
LABELLED = text("labels <> ''")
OUTBOX = outbox_table(METADATA)

EPISODES = Table(
    "episodes",
    METADATA,
    *columns("episode_id tenant run_id group_id model task_slug task_digest family guided_after", String),
    *columns("taskset", String),
    # Of a recorded session: `,flow:refund,env:prod,`, so that one is found with the commas around it.
    *columns("labels", String),
    *columns("purpose split state", SmallInteger),
    *columns("member group_size", Integer),
    *columns("reason trained_by_run", String),
    *columns("step since_us updated_us trained_step", BigInteger),
    *columns("settled in_conflict trained_twice", Boolean),
    # The stored trajectory; body_key is null until it is recorded.
    *columns("body_key body_sha256 trace_id", String),
    *columns("body_size_bytes oldest_version newest_version recorded_us", BigInteger),
    *columns("stop_reason", SmallInteger),
    *columns("num_turns num_sampled_tokens", Integer),
    # The grade; reward is null until it is graded.
    *columns("reward", Float),
    *columns("success body_checked", Boolean),
    *columns("subscores", LargeBinary),
    # Of the failure that the policy caused, where the grade says so: "" before there was the column.
    *columns("failure_kind", String),
    *columns("quarantine", String),
    # changed: position in the feed of changes, of the newest change of this row.
    *columns("graded_us changed", BigInteger),
    # Retention: decided at body_removed_us, and body_deleted once the object is gone.
    *columns("body_removed_us", BigInteger),
    *columns("body_removed_why", String),
    *columns("body_deleted", Boolean),
)
LEDGER = Table(
    "ledger_counts",
    METADATA,
    *columns("tenant run_id reason", String),
    *columns("state", SmallInteger),
    *columns("count", BigInteger),
)
ALARMS = Table(
    "ledger_alarms",
    METADATA,
    *columns("tenant run_id", String),
    *columns("conflicts trained_twice", BigInteger),
)
# position: of the newest change. Every writer locks it, so positions commit in order.
FEED = Table("feed", METADATA, *columns("id", SmallInteger), *columns("position", BigInteger))
# Runs of which rows were removed: a late fact about an episode without a row adds none.
REMOVED_RUNS = Table(
    "removed_runs",
    METADATA,
    *columns("tenant run_id why", String),
    *columns("removed_us num_episodes", BigInteger),
)
# Monitors of reward hacks. position: up to which changes of the feed were seen; its lock orders the writers.
MONITOR_CURSOR = Table(
    "monitor_cursor", METADATA, *columns("id", SmallInteger), *columns("position", BigInteger)
)
MONITOR_STATES = Table(
    "monitor_states",
    METADATA,
    *columns("tenant run_id", String),
    *columns("state", LargeBinary),
    *columns("updated_us", BigInteger),
)
# Episodes that were seen, once each.
MONITORED = Table("monitored", METADATA, *columns("tenant episode_id run_id signature hits", String))
REWARD_ALARMS = Table(
    "reward_alarms",
    METADATA,
    *columns("tenant run_id kind model text trajectory_ids dismissed_by note", String),
    *columns("value limit_value", Float),
    *columns("since_version version raised_us cleared_us dismissed_us", BigInteger),
)
REVIEWS = Table(
    "reviews",
    METADATA,
    *columns("tenant episode_id reviewer run_id note", String),
    *columns("verdict", SmallInteger),
    *columns("reviewed_us", BigInteger),
)
