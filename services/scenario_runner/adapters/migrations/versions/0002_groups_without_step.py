"""The step at which a group ended: groups without a step are counted from there."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Groups that ended before are counted as if at step 0, so a run that has made a step ignores them."""
    op.add_column("task_group", sa.Column("at_step", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("task_group_by_step", "task_group", ["run_id", "at_step"])
    # Serves what the index on run and openness served, and counts outcomes without reading rows.
    op.create_index("task_group_by_outcome", "task_group", ["run_id", "is_open", "outcome"])
    op.drop_index("task_group_by_run", "task_group")


def downgrade() -> None:
    """To 0001."""
    op.create_index("task_group_by_run", "task_group", ["run_id", "is_open"])
    op.drop_index("task_group_by_outcome", "task_group")
    op.drop_index("task_group_by_step", "task_group")
    op.drop_column("task_group", "at_step")
