"""Canary releases: a share of a model's conversations served beside head, and the audit of each change."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A registry of the version before grants none. Where it moves head, it leaves one under way that this
    version began: the next move by this version ends it."""
    op.create_table(
        "canary_release",
        sa.Column("tenant", sa.String(64), primary_key=True, server_default="default"),
        sa.Column("model", sa.String(256), primary_key=True),
        sa.Column("revision", sa.BigInteger, primary_key=True),
        sa.Column("checkpoint_id", sa.String(256), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("share", sa.Float, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
    )
