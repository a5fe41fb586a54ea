"""Tables of the trajectory store. Moments are microseconds since 1970: both databases sort them alike."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    text,
)

from identities.tenants import DEFAULT_TENANT
from sql_store import outbox_table

METADATA = MetaData()

# Queries must use these very texts: SQLite takes a partial index only for the condition it was made with.
UNSETTLED = text("NOT settled")
UNCHECKED = text("NOT body_checked AND body_key IS NOT NULL")
OUTBOX = outbox_table(METADATA)


def _tenant(*, primary_key: bool = False) -> Column[str]:
    return Column(
        "tenant", String(64), primary_key=primary_key, nullable=False, server_default=DEFAULT_TENANT
    )


EPISODES = Table(
    "episodes",
    METADATA,
    Column("episode_id", String, primary_key=True),
    _tenant(),
    Column("run_id", String, nullable=False),
    Column("group_id", String, nullable=False),
    Column("member", Integer, nullable=False),
    Column("group_size", Integer, nullable=False),
    Column("model", String, nullable=False),
    Column("purpose", SmallInteger, nullable=False),
    Column("split", SmallInteger, nullable=False),
    Column("task_slug", String, nullable=False),
    Column("task_digest", String, nullable=False),
    Column("family", String, nullable=False),
    Column("state", SmallInteger, nullable=False),
    Column("reason", String, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("since_us", BigInteger, nullable=False),
    Column("updated_us", BigInteger, nullable=False),
    Column("settled", Boolean, nullable=False),
    Column("trained_step", BigInteger, nullable=False),
    Column("trained_by_run", String, nullable=False),
    Column("in_conflict", Boolean, nullable=False),
    Column("trained_twice", Boolean, nullable=False),
    # The stored trajectory; body_key is null until it is recorded.
    Column("body_key", String),
    Column("body_sha256", String),
    Column("body_size_bytes", BigInteger),
    Column("oldest_version", BigInteger),
    Column("newest_version", BigInteger),
    Column("stop_reason", SmallInteger),
    Column("num_turns", Integer),
    Column("num_sampled_tokens", Integer),
    Column("recorded_us", BigInteger),
    Column("trace_id", String),
    # The grade; reward is null until it is graded.
    Column("reward", Float),
    Column("success", Boolean),
    Column("subscores", LargeBinary),
    Column("graded_us", BigInteger),
    Column("body_checked", Boolean, nullable=False),
    Column("quarantine", String, nullable=False),
    # Position in the feed of changes: of the newest change of this row.
    Column("changed", BigInteger, nullable=False),
    Index("ix_episodes_changed", "changed"),
    Index("ix_episodes_group", "group_id"),
    Index("ix_episodes_recorded", "recorded_us", "episode_id"),
    Index("ix_episodes_run_recorded", "run_id", "recorded_us", "episode_id"),
    Index("ix_episodes_unsettled", "run_id", "since_us", sqlite_where=UNSETTLED, postgresql_where=UNSETTLED),
    Index("ix_episodes_unchecked", "recorded_us", sqlite_where=UNCHECKED, postgresql_where=UNCHECKED),
)

LEDGER = Table(
    "ledger_counts",
    METADATA,
    _tenant(primary_key=True),
    Column("run_id", String, primary_key=True),
    Column("state", SmallInteger, primary_key=True),
    Column("reason", String, primary_key=True),
    Column("count", BigInteger, nullable=False),
)

ALARMS = Table(
    "ledger_alarms",
    METADATA,
    _tenant(primary_key=True),
    Column("run_id", String, primary_key=True),
    Column("conflicts", BigInteger, nullable=False),
    Column("trained_twice", BigInteger, nullable=False),
)

FEED = Table(
    "feed",
    METADATA,
    Column("id", SmallInteger, primary_key=True, autoincrement=False),
    # Position of the newest change. Every writer locks it, so positions commit in order.
    Column("position", BigInteger, nullable=False),
)
