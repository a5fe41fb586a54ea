"""Which code judges the episodes of a run. Of runs from before it is not known."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A planner of the version before writes rows without it."""
    op.add_column("run", sa.Column("source_digest", sa.String(64), nullable=False, server_default=""))
