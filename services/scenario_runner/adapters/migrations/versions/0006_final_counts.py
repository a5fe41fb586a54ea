"""The counts of a run that is over, kept with it: a look at the run reads no episode."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Null for runs that ended before, or under a planner of an earlier version: they are counted."""
    op.add_column("run", sa.Column("final_counts", sa.Text))
