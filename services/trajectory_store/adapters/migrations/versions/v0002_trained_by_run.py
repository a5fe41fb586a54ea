"""Which training run took the gradient on an episode."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Until this revision runs trained on their own episodes only."""
    op.add_column("episodes", sa.Column("trained_by_run", sa.String, nullable=False, server_default=""))
    op.execute("UPDATE episodes SET trained_by_run = run_id WHERE trained_step > 0")


def downgrade() -> None:
    """To revision 0001."""
    op.drop_column("episodes", "trained_by_run")
