"""Episodes, ledger counters, feed, outbox."""

from typing import Any

import sqlalchemy as sa
from alembic import op

from sql_store import columns, outbox_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, and the one row of the feed."""
    op.create_table("episodes", *_ledger_columns(), *_trajectory_columns())
    _index_episodes()
    op.create_table(
        "ledger_counts",
        _tenant(primary_key=True),
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("state", sa.SmallInteger, primary_key=True),
        sa.Column("reason", sa.String, primary_key=True),
        *_required("count", sa.BigInteger),
    )
    op.create_table(
        "ledger_alarms",
        _tenant(primary_key=True),
        sa.Column("run_id", sa.String, primary_key=True),
        *_required("conflicts trained_twice", sa.BigInteger),
    )
    feed = op.create_table(
        "feed",
        sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
        *_required("position", sa.BigInteger),
    )
    op.bulk_insert(feed, [{"id": 1, "position": 0}])
    outbox_table(sa.MetaData()).create(op.get_bind())


def _required(names: str, kind: type[sa.types.TypeEngine[Any]]) -> list[sa.Column[Any]]:
    return columns(names, kind, nullable=False)


def _tenant(*, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column(
        "tenant", sa.String(64), primary_key=primary_key, nullable=False, server_default="default"
    )


def _ledger_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("episode_id", sa.String, primary_key=True),
        _tenant(),
        *_required("run_id group_id model task_slug task_digest family reason trained_by_run", sa.String),
        *_required("member group_size", sa.Integer),
        *_required("purpose split state", sa.SmallInteger),
        *_required("step since_us updated_us trained_step", sa.BigInteger),
        *_required("settled in_conflict trained_twice", sa.Boolean),
    ]


def _trajectory_columns() -> list[sa.Column[Any]]:
    return [
        *columns("body_key body_sha256 trace_id", sa.String),
        *columns("body_size_bytes oldest_version newest_version recorded_us graded_us", sa.BigInteger),
        *columns("stop_reason", sa.SmallInteger),
        *columns("num_turns num_sampled_tokens", sa.Integer),
        *columns("reward", sa.Float),
        *columns("success", sa.Boolean),
        *columns("subscores", sa.LargeBinary),
        *_required("body_checked", sa.Boolean),
        *_required("quarantine", sa.String),
        *_required("changed", sa.BigInteger),
    ]


def _index_episodes() -> None:
    op.create_index("ix_episodes_changed", "episodes", ["changed"])
    op.create_index("ix_episodes_group", "episodes", ["group_id"])
    op.create_index("ix_episodes_recorded", "episodes", ["recorded_us", "episode_id"])
    op.create_index("ix_episodes_run_recorded", "episodes", ["run_id", "recorded_us", "episode_id"])
    for name, indexed, condition in (
        ("ix_episodes_unsettled", ["run_id", "since_us"], "NOT settled"),
        ("ix_episodes_unchecked", ["recorded_us"], "NOT body_checked AND body_key IS NOT NULL"),
    ):
        where = sa.text(condition)
        op.create_index(name, "episodes", indexed, sqlite_where=where, postgresql_where=where)
