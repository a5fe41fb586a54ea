"""Lists of runs, and runs that retention looks at, in the order of an index."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Each begins with the tenant: SQLite prefers an index of which a query knows the first column."""
    op.create_index("run_newest", "run", ["tenant", "submitted_at", "run_id"])
    op.create_index("run_newest_of_model", "run", ["tenant", "model", "submitted_at", "run_id"])
    op.drop_index("run_finished", "run")
    where = sa.text("finished_at IS NOT NULL AND removed_at IS NULL")
    indexed = ["tenant", "finished_at", "run_id"]
    op.create_index("run_oldest_finished", "run", indexed, sqlite_where=where, postgresql_where=where)
