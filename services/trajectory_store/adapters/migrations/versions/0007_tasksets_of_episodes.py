"""Which taskset, with its revision, the task of an episode is of: a run may play several."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column without writing a row; a store of the version before writes rows without it."""
    op.add_column("episodes", sa.Column("taskset", sa.String, nullable=False, server_default=""))
