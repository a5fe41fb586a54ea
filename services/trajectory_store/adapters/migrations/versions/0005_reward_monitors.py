"""Monitors of reward hacks: how far they read, what they keep, their alarms; reviews of people."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def _tenant() -> sa.Column[str]:
    return sa.Column("tenant", sa.String(64), primary_key=True, nullable=False, server_default="default")


def _texts(*names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.String, nullable=False, server_default="") for name in names]


def upgrade() -> None:
    """Add tables. The monitors begin with what changes from now on."""
    _create_monitors()
    _create_alarms()
    _create_reviews()


def _create_monitors() -> None:
    op.create_table(
        "monitor_cursor",
        sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger, nullable=False),
    )
    op.execute("INSERT INTO monitor_cursor (id, position) SELECT 1, COALESCE(MAX(position), 0) FROM feed")
    op.create_table(
        "monitor_states",
        _tenant(),
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("state", sa.LargeBinary, nullable=False),
        sa.Column("updated_us", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "monitored",
        _tenant(),
        sa.Column("episode_id", sa.String, primary_key=True),
        *_texts("run_id", "signature", "hits"),
    )
    op.create_index("ix_monitored_signature", "monitored", ["run_id", "signature"])


def _create_alarms() -> None:
    op.create_table(
        "reward_alarms",
        _tenant(),
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("kind", sa.String(64), primary_key=True),
        *_texts("model", "text", "trajectory_ids", "dismissed_by", "note"),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("limit_value", sa.Float, nullable=False),
        sa.Column("since_version", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("raised_us", sa.BigInteger, nullable=False),
        sa.Column("cleared_us", sa.BigInteger),
        sa.Column("dismissed_us", sa.BigInteger),
    )


def _create_reviews() -> None:
    op.create_table(
        "reviews",
        _tenant(),
        sa.Column("episode_id", sa.String, primary_key=True),
        sa.Column("reviewer", sa.String(128), primary_key=True),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("verdict", sa.SmallInteger, nullable=False),
        sa.Column("note", sa.String, nullable=False),
        sa.Column("reviewed_us", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_reviews_run", "reviews", ["run_id"])
