"""Groups and episodes that attempt a failed task again with guidance, and how many such groups a run has."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns without writing a row; a planner of the version before writes rows without them."""
    for table in ("task_group", "episode"):
        op.add_column(table, sa.Column("guided_after", sa.String, nullable=False, server_default=""))
    op.add_column("run", sa.Column("num_guided", sa.BigInteger, nullable=False, server_default="0"))
