"""Runs that no other run may begin to draw from, because retention may remove their trajectories; and an
index of the runs that are not over.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column without writing a row, and a partial index."""
    op.add_column("run", sa.Column("released_at", sa.DateTime(timezone=True)))
    not_over = sa.text("state NOT IN ('completed', 'failed', 'cancelled')")
    op.create_index("run_not_over", "run", ["submitted_at"], sqlite_where=not_over, postgresql_where=not_over)
