"""What versions of training runs did on held-out sets that the runs are followed on."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table, and the index by which open rows are found."""
    op.create_table(
        "tracked_rate",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("taskset", sa.String, primary_key=True),
        sa.Column("step", sa.BigInteger, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("eval_run_id", sa.String, nullable=False, server_default=""),
        sa.Column("detail", sa.String, nullable=False, server_default=""),
        sa.Column("outcomes", sa.String, nullable=False, server_default="{}"),
        sa.Column("num_trained", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("reward", sa.Float, nullable=False, server_default="0"),
        sa.Column("drift", sa.Float),
        sa.Column("engine_s", sa.Float, nullable=False, server_default="0"),
        sa.Column("noted_at", sa.DateTime(timezone=True), nullable=False),
    )
    is_open = sa.text("state IN ('due', 'playing')")
    op.create_index(
        "ix_tracked_rate_open", "tracked_rate", ["run_id"], sqlite_where=is_open, postgresql_where=is_open
    )
