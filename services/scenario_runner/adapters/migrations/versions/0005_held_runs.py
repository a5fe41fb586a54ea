"""Runs whose trajectories an interactive session trains on: since when, so that retention keeps them until
its checkpoint refers to them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column without writing a row."""
    op.add_column("run", sa.Column("held_at", sa.DateTime(timezone=True)))
