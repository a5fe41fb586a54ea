"""Secrets of MCP servers, encrypted."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Begins empty."""
    op.create_table(
        "server_secret",
        sa.Column("tenant", sa.String(64), primary_key=True, server_default="default"),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("set_by", sa.String(128), nullable=False),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
    )
