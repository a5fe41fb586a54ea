"""New tasks that the environments' generators make for training runs, and the groups that play them."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A table, and columns that are added without writing a row; a planner of the version before writes rows
    without them."""
    texts = "taskset scenario family parent_slug parent_digest parent_args state detail slug args_json digest"
    numbers = "num_groups num_trained num_left_out num_flat num_in_a_row num_graded num_successes"
    op.create_table(
        "new_task",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True),
        sa.Column("task_position", sa.BigInteger, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("solved", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.String, nullable=False, server_default="") for name in texts.split()),
        *(sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in numbers.split()),
        sa.Column("newest", sa.BigInteger, nullable=False, server_default="-1"),
    )
    op.create_index("ix_new_task_state", "new_task", ["run_id", "state"])
    op.create_index("ix_new_task_digest", "new_task", ["run_id", "digest"])
    for table in ("task_group", "episode"):
        op.add_column(table, sa.Column("new_task", sa.BigInteger, nullable=True))
    for table in ("run", "run_mix"):
        op.add_column(table, sa.Column("num_new", sa.BigInteger, nullable=False, server_default="0"))
