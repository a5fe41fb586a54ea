"""API keys and usage."""

import sqlalchemy as sa
from alembic import op

from sql_store import columns

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "api_key",
        sa.Column("key_id", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False, server_default="default"),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("models", sa.JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
    )
    op.create_table(
        "usage",
        sa.Column("request_id", sa.String(128), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False, server_default="default"),
        sa.Column("key_id", sa.String(32), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        *columns("path digest", sa.String(64), nullable=False),
        *columns("error", sa.Text, nullable=False),
        *columns("status", sa.Integer, nullable=False),
        *columns("streamed", sa.Boolean, nullable=False),
        *columns("version", sa.BigInteger),
        *columns("prompt_tokens completion_tokens", sa.BigInteger, nullable=False),
        *columns("started_at", sa.DateTime(timezone=True), nullable=False),
        *columns("first_byte_s", sa.Float),
        *columns("duration_s", sa.Float, nullable=False),
    )
    op.create_index("usage_by_key", "usage", ["key_id", "started_at"])
    op.create_index("usage_by_model", "usage", ["model", "started_at"])
