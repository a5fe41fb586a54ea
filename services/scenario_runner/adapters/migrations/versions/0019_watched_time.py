"""Since when a planner has looked for overdue episodes without a gap."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table of one row, which the first sweep writes."""
    op.create_table(
        "watched_time",
        sa.Column("work", sa.String(32), primary_key=True),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
    )
