"""Policies that an engine keeps loaded because somebody asked for them."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A registry of the version before grants no holds."""
    op.create_table(
        "policy_hold",
        sa.Column("tenant", sa.String(64), primary_key=True, server_default="default"),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("version", sa.BigInteger, primary_key=True),
        sa.Column("holder", sa.String(64), primary_key=True),
        sa.Column("engine_id", sa.String(256), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("policy_hold_of_engine", "policy_hold", ["tenant", "engine_id"])
