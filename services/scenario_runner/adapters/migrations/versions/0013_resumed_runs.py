"""When a person resumed a run that had paused itself: what is said of its groups begins there."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column without writing a row."""
    op.add_column("run", sa.Column("resumed_at", sa.DateTime(timezone=True)))
