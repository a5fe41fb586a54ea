"""Head and its predecessor play side by side after each promotion."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A registry of the version before writes no such rows."""
    op.create_table(
        "watch_run",
        sa.Column("tenant", sa.String(64), primary_key=True, server_default="default"),
        sa.Column("request_id", sa.String(256), primary_key=True),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("head_revision", sa.BigInteger, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("pairs", sa.JSON, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("watch_run_of_head", "watch_run", ["tenant", "model", "head_revision"])
    op.create_index("watch_run_of_run", "watch_run", ["tenant", "run_id"])
