"""Runs whose groups and episodes were removed: since when and why, and the totals that are kept."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns without writing a row, and indexes of what may go and of what is going."""
    for column in (
        sa.Column("removed_at", sa.DateTime(timezone=True)),
        sa.Column("summary", sa.Text, nullable=False, server_default=""),
        sa.Column("is_emptied", sa.Boolean, nullable=False, server_default=sa.false()),
    ):
        op.add_column("run", column)
    for name, indexed, condition in (
        ("run_finished", ["finished_at", "run_id"], "finished_at IS NOT NULL AND removed_at IS NULL"),
        ("run_emptying", ["run_id"], "removed_at IS NOT NULL AND NOT is_emptied"),
    ):
        where = sa.text(condition)
        op.create_index(name, "run", indexed, sqlite_where=where, postgresql_where=where)
    op.create_index("source_group_of_source", "source_group", ["source_run_id", "run_id"])
