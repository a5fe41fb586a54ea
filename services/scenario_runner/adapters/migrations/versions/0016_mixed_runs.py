"""The tasksets of a training run that plays several, each with what came of its groups."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table; runs without a mix have no row in it."""
    numbers = "num_groups num_guided num_trained num_left_out num_in_a_row num_graded num_successes"
    op.create_table(
        "run_mix",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("taskset", sa.String, nullable=False),
        sa.Column("source_digest", sa.String(64), nullable=False, server_default=""),
        sa.Column("num_tasks", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in numbers.split()),
        sa.Column("reward_sum", sa.Float, nullable=False, server_default="0"),
    )
    op.create_index("ix_run_mix_taskset", "run_mix", ["taskset"])
