"""What leak scans and attacks on graders found in tasksets."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table, and the index by which scans that are due are found; a planner of the version before knows
    neither, and tasksets that were registered before have no rows."""
    op.create_table(
        "taskset_check",
        *(
            sa.Column(name, sa.String, primary_key=True)
            for name in ("tenant", "taskset", "kind", "model_family", "source_digest")
        ),
        *(
            sa.Column(name, sa.String, nullable=False, server_default="")
            for name in ("checked_by", "stopped")
        ),
        sa.Column("findings", sa.String, nullable=False, server_default="[]"),
        *(
            sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
            for name in ("num_tasks", "num_looked", "num_plays", "num_findings")
        ),
        sa.Column("checked_at", sa.DateTime(timezone=True)),
    )
    is_due = sa.text("checked_at IS NULL")
    op.create_index(
        "ix_taskset_check_due", "taskset_check", ["taskset"], sqlite_where=is_due, postgresql_where=is_due
    )
