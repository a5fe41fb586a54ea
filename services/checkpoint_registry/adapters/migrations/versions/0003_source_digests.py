"""Which code judged an evaluation. Of those from before it is not known."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A registry of the version before writes rows without it. The index finds the newest of a taskset."""
    op.add_column("evaluation", sa.Column("source_digest", sa.String(64), nullable=False, server_default=""))
    # With the tenant first, SQLite would take it for what asks about runs, and read all of a tenant's.
    indexed = ["taskset_digest", "profile_key", "tenant", "finished_at"]
    op.create_index("evaluation_newest", "evaluation", indexed)
