"""New tasks that a run which plays against itself proposed: the episode whose answer each is."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A column that is added without writing a row; a planner of the version before writes rows without
    it."""
    op.add_column("new_task", sa.Column("proposed_by", sa.String, nullable=False, server_default=""))
    op.create_index("ix_new_task_proposed_by", "new_task", ["run_id", "proposed_by"])
