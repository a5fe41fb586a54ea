"""The revision of the taskset that a gate job measures on."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Jobs from before this revision (0) ask for the taskset by its name alone."""
    op.add_column("gate_job", sa.Column("taskset_revision", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    """To revision 0002."""
    op.drop_column("gate_job", "taskset_revision")
