"""Evaluations that a checkpoint's run trained on."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Until this revision runs trained on their own episodes only."""
    op.add_column("checkpoint", sa.Column("sources", sa.JSON, nullable=False, server_default="{}"))


def downgrade() -> None:
    """To revision 0001."""
    op.drop_column("checkpoint", "sources")
