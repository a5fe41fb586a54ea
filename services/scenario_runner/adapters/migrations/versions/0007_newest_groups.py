"""The newest closed groups of a run by an index: how they ended is asked for each group that fails."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Closed groups have `settled_at`."""
    op.create_index("task_group_newest", "task_group", ["run_id", "is_open", "settled_at", "position"])
