"""Limits of keys, and what a request cost."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision. A gateway of the version before leaves both columns out."""
    op.add_column("api_key", sa.Column("limits", sa.JSON, nullable=True))
    op.add_column("usage", sa.Column("cost", sa.Float, nullable=False, server_default=sa.text("0")))
