"""Recorded sessions, their calls until they are closed, the outbox, and keys whose traffic may be
captured."""

import sqlalchemy as sa
from alembic import op

from sql_store import columns, outbox_table

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.add_column("api_key", sa.Column("may_capture", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_table(
        "recorded_session",
        sa.Column("tenant", sa.String(64), primary_key=True, server_default="default"),
        sa.Column("session_id", sa.String(64), primary_key=True),
        sa.Column("key_id", sa.String(32), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("task_digest", sa.String(64), nullable=False),
        sa.Column("captured", sa.Boolean, nullable=False),
        *columns("opened_at last_call_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("recorded_session_by_state", "recorded_session", ["state", "last_call_at"])
    op.create_table(
        "recorded_call",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
        ),
        sa.Column("tenant", sa.String(64), nullable=False, server_default="default"),
        sa.Column("session_id", sa.String(64), nullable=False),
        *columns("messages tools", sa.Text, nullable=False),
        sa.Column("turn", sa.LargeBinary, nullable=False),
        sa.Column("temperature", sa.Float, nullable=False),
        *columns("started_at ended_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("recorded_call_by_session", "recorded_call", ["tenant", "session_id", "id"])
    outbox_table(sa.MetaData()).create(op.get_bind())
