"""Retention: which bodies went and why, and runs of which rows went."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns to episodes without writing a row, partial indexes of what may go, and a table."""
    for column in (
        sa.Column("body_removed_us", sa.BigInteger),
        sa.Column("body_removed_why", sa.String, nullable=False, server_default=""),
        sa.Column("body_deleted", sa.Boolean, nullable=False, server_default=sa.false()),
    ):
        op.add_column("episodes", column)
    for name, indexed, condition in (
        (
            "ix_episodes_bodies",
            ["recorded_us", "episode_id"],
            "settled AND body_key IS NOT NULL AND body_removed_us IS NULL",
        ),
        ("ix_episodes_bodies_going", ["episode_id"], "body_removed_us IS NOT NULL AND NOT body_deleted"),
        (
            "ix_episodes_without_body",
            ["since_us", "episode_id"],
            "settled AND (body_key IS NULL OR body_deleted)",
        ),
    ):
        where = sa.text(condition)
        op.create_index(name, "episodes", indexed, sqlite_where=where, postgresql_where=where)
    op.create_table(
        "removed_runs",
        sa.Column("tenant", sa.String(64), primary_key=True, nullable=False, server_default="default"),
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("why", sa.String, nullable=False),
        sa.Column("removed_us", sa.BigInteger, nullable=False),
        sa.Column("num_episodes", sa.BigInteger, nullable=False),
    )
