"""Failed episodes of a run by their end and by their reason: what `why` says about failures sorts none."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two indexes of failed episodes: by their end, and by what failed."""
    is_failed = sa.text("state = 'failed'")
    for name, column in (("episode_failed", "settled_at"), ("episode_failed_by_reason", "reason")):
        indexed = ["run_id", column]
        op.create_index(name, "episode", indexed, sqlite_where=is_failed, postgresql_where=is_failed)
