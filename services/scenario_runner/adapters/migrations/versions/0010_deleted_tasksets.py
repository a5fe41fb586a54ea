"""Tasksets that were deleted. Their tasks are gone and their rows stay: old runs name them, and the number of
a revision never means other tasks.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column without writing a row."""
    op.add_column("taskset", sa.Column("deleted_at", sa.DateTime(timezone=True)))
